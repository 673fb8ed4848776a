//! Shapes: anything that turns into a list of lengths.

use smallvec::SmallVec;

use crate::error::{Error, ErrorKind, Inner, Result};

/// The lengths of an array's axes, the last one contiguous. No axes: one element.
pub(crate) type Dims = SmallVec<[usize; 4]>;

/// What can be given as a shape or an index: a number, an array, a slice or a `Vec` of numbers,
/// or `()` for no axes.
pub trait Shape {
    /// The lengths of the axes.
    fn dims(&self) -> SmallVec<[usize; 4]>;
}

impl Shape for usize {
    fn dims(&self) -> Dims {
        smallvec::smallvec![*self]
    }
}

impl Shape for () {
    fn dims(&self) -> Dims {
        Dims::new()
    }
}

impl Shape for [usize] {
    fn dims(&self) -> Dims {
        self.into()
    }
}

impl<const N: usize> Shape for [usize; N] {
    fn dims(&self) -> Dims {
        self.as_slice().into()
    }
}

impl Shape for Vec<usize> {
    fn dims(&self) -> Dims {
        self.as_slice().into()
    }
}

impl<S: Shape + ?Sized> Shape for &S {
    fn dims(&self) -> Dims {
        (**self).dims()
    }
}

/// Elements and bytes of a shape.
pub(crate) fn extent(dims: &[usize], element: usize) -> Result<(usize, u64)> {
    let overflow = || Error::new(Inner::Overflow { shape: dims.to_vec(), element });
    // An empty axis makes the array empty, whatever the others would overflow to.
    if dims.contains(&0) {
        return Ok((0, 0));
    }
    let len = dims.iter().try_fold(1usize, |len, &dim| len.checked_mul(dim));
    let len = len.ok_or_else(overflow)?;
    let size = len.checked_mul(element).filter(|&size| isize::try_from(size).is_ok());
    Ok((len, size.ok_or_else(overflow)? as u64))
}

/// The place of an index; one number is the place itself.
pub(crate) fn place(dims: &[usize], len: usize, index: &[usize]) -> Result<usize> {
    let outside = || {
        Error::message(
            ErrorKind::OutOfRange,
            format!("index {index:?} is outside an array of shape {dims:?}"),
        )
    };
    if let [flat] = index {
        return if *flat < len { Ok(*flat) } else { Err(outside()) };
    }
    // An array without elements may have axes whose product overflows.
    if index.len() != dims.len() || len == 0 {
        return Err(outside());
    }
    let mut place = 0;
    for (&at, &dim) in index.iter().zip(dims) {
        if at >= dim {
            return Err(outside());
        }
        place = place * dim + at;
    }
    if place < len { Ok(place) } else { Err(outside()) }
}

/// Whether `short` repeats along `long`: it is a single element, or the last axes of it.
pub(crate) fn repeats(short: &[usize], long: &[usize]) -> bool {
    short.iter().all(|&dim| dim == 1) || long.ends_with(short)
}
