//! Random expressions on the stand-in and on the CPU agree (rule N.3). Every text that it compiles is
//! checked as MSL first: syntax, types and address spaces.

#[path = "../../../../aquifer/tests/expressions/mod.rs"]
mod expressions;

use aquifer::prelude::*;
use metal_fake::{alone, left_behind, texts_checked};

#[test]
fn random_expressions_agree_with_the_cpu() -> Result<()> {
    let _alone = alone();
    let (device, before) = (Device::named("metal")?, texts_checked());
    expressions::agree_with_the_cpu(&device, 500);
    println!("{} texts passed the syntax check", texts_checked() - before);
    assert!(texts_checked() - before >= 500);
    drop(device);
    assert_eq!(left_behind(), Vec::<String>::new());
    Ok(())
}

#[test]
fn functions_agree_with_the_cpu() -> Result<()> {
    let _alone = alone();
    expressions::functions_agree_with_the_cpu(&Device::named("metal")?);
    assert_eq!(left_behind(), Vec::<String>::new());
    Ok(())
}
