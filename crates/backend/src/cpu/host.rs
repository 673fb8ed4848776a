//! What a kernel of the user's sees on the CPU.

use std::marker::PhantomData;
use std::ops::Range;

use smallvec::SmallVec;

use crate::cpu::threads;
use crate::element::Element;
use crate::seam::{Binding, Dispatch};

/// Arguments of a user's kernel for one range of its grid.
///
/// Inputs are seen whole; an output as long as the grid is seen by the part that belongs to the
/// range, so that ranges can run side by side. An output of another length makes the kernel run
/// once, over the whole grid, and is seen whole.
///
/// ```
/// use aquifer_backend::HostArgs;
/// fn saxpy(k: &mut HostArgs<'_>) -> Result<(), String> {
///     let (x, a, range) = (k.input::<f32>(0)?, k.scalar::<f32>(0)?, k.range());
///     for (y, x) in k.output::<f32>(0)?.iter_mut().zip(&x[range]) {
///         *y = a * x;
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct HostArgs<'a> {
    inputs: SmallVec<[Binding; 4]>,
    outputs: SmallVec<[Binding; 2]>,
    params: SmallVec<[u64; 4]>,
    range: Range<usize>,
    life: PhantomData<&'a mut [u8]>,
}

/// Elements of a binding, if they are of type `T`. A binding is aligned for its own type.
fn fit<T: Element>(binding: &Binding, what: &str, index: usize) -> Result<usize, String> {
    if binding.dtype != T::DTYPE {
        return Err(format!(
            "{what} {index} is an array of {}, not of {}",
            binding.dtype,
            T::DTYPE
        ));
    }
    Ok((binding.len / size_of::<T>() as u64) as usize)
}

impl HostArgs<'_> {
    /// The places of this call.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// An array that is read, whole.
    ///
    /// # Errors
    /// No such input, or its elements are of another type.
    pub fn input<'s, T: Element>(&self, index: usize) -> Result<&'s [T], String>
    where
        Self: 's,
    {
        let binding = self.inputs.get(index).ok_or_else(|| missing("input", index))?;
        let len = fit::<T>(binding, "input", index)?;
        if len == 0 {
            return Ok(&[]);
        }
        // SAFETY: the binding's memory is readable and no one writes it until the kernel is done
        // (contract of `submit`); `run` refuses kernels whose outputs overlap their inputs.
        // `HostArgs` cannot outlive the call, and `'s` cannot outlive `HostArgs`.
        Ok(unsafe { std::slice::from_raw_parts(binding.address as *const T, len) })
    }

    /// The part of an array that this call writes.
    ///
    /// # Errors
    /// No such output, or its elements are of another type.
    pub fn output<T: Element>(&mut self, index: usize) -> Result<&mut [T], String> {
        let binding = self.outputs.get(index).ok_or_else(|| missing("output", index))?;
        let len = fit::<T>(binding, "output", index)?;
        if len == 0 {
            return Ok(&mut []);
        }
        // SAFETY: the binding was cut to this call's part, which no other call touches; the
        // borrow of `self` keeps a second slice of it away.
        Ok(unsafe { std::slice::from_raw_parts_mut(binding.address as *mut T, len) })
    }

    /// A scalar argument; its bits are read as `T`.
    ///
    /// # Errors
    /// No such scalar.
    pub fn scalar<T: Element>(&self, index: usize) -> Result<T, String> {
        let bits = self.params.get(index).ok_or_else(|| missing("scalar", index))?;
        Ok(T::from_bits(*bits))
    }
}

fn missing(what: &str, index: usize) -> String {
    format!("the kernel has no {what} {index}")
}

/// Places of one call of a kernel that can run in ranges.
const RANGE: u64 = 16 << 10;

/// Runs a user's kernel over its grid.
pub(super) fn run(
    kernel: &(dyn Fn(&mut HostArgs<'_>) -> Result<(), String> + Send + Sync),
    dispatch: &Dispatch,
) -> Result<(), String> {
    use rayon::prelude::*;
    let overlap = dispatch.outputs.iter().enumerate().any(|(index, output)| {
        dispatch.inputs.iter().chain(&dispatch.outputs[..index]).any(|other| output.overlaps(other))
    });
    if overlap {
        return Err("an output overlaps another argument".to_owned());
    }
    let len = dispatch.len;
    let whole_grid =
        |output: &Binding| len.checked_mul(output.dtype.size() as u64) == Some(output.len);
    let divides = len > RANGE && dispatch.outputs.iter().all(whole_grid);
    let call = |range: Range<u64>| {
        let outputs = dispatch.outputs.iter().map(|output| {
            if !divides {
                return *output;
            }
            let size = output.len / len;
            Binding {
                offset: output.offset + range.start * size,
                len: (range.end - range.start) * size,
                address: output.address + range.start * size,
                ..*output
            }
        });
        let mut args = HostArgs {
            inputs: dispatch.inputs.clone(),
            outputs: outputs.collect(),
            params: dispatch.params.clone(),
            range: range.start as usize..range.end as usize,
            life: PhantomData,
        };
        kernel(&mut args)
    };
    if divides {
        threads::install(|| {
            (0..len.div_ceil(RANGE))
                .into_par_iter()
                .try_for_each(|index| call(index * RANGE..((index + 1) * RANGE).min(len)))
        })
    } else {
        call(0..len)
    }
}
