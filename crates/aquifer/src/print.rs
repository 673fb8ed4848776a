//! Printing arrays (rule F.5): both modes, at most 1,000 elements.

use std::fmt;

use aquifer_backend::Element;

use crate::array::Array;
use crate::error::Result;
use crate::mode::Mode;

/// Elements that are printed; the rest is elided.
const MOST: usize = 1000;

impl<T: Element, M: Mode> Array<T, M> {
    /// The first elements, copied out.
    fn head(&self) -> Result<Vec<T>> {
        self.slice(..self.len().min(MOST))?.to_vec()
    }
}

impl<T: Element, M: Mode> fmt::Display for Array<T, M> {
    /// Prints like nested lists, after the work that writes the array is done.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.head() {
            // However many empty rows there are, there is nothing in them.
            Ok(head) if head.is_empty() => f.write_str("[]"),
            Ok(head) => {
                let mut printer = Printer { head: &head, next: 0 };
                printer.axis(f, self.shape())?;
                if self.len() > MOST {
                    write!(f, " ({} of {} elements)", head.len(), self.len())?;
                }
                Ok(())
            }
            Err(error) => write!(f, "<{error}>"),
        }
    }
}

struct Printer<'a, T> {
    head: &'a [T],
    next: usize,
}

impl<T: Element> Printer<'_, T> {
    fn axis(&mut self, f: &mut fmt::Formatter<'_>, shape: &[usize]) -> fmt::Result {
        let Some((&count, inner)) = shape.split_first() else {
            if let Some(value) = self.head.get(self.next) {
                fmt::Display::fmt(value, f)?;
            }
            self.next += 1;
            return Ok(());
        };
        f.write_str("[")?;
        for index in 0..count {
            if index > 0 {
                f.write_str(", ")?;
            }
            if self.next >= self.head.len() {
                f.write_str("...")?;
                break;
            }
            self.axis(f, inner)?;
        }
        f.write_str("]")
    }
}

impl<T: Element, M: Mode> fmt::Debug for Array<T, M> {
    /// Type, shape, mode and origin; never the elements, so it waits for nothing.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Array<{}, {}>({:?}, {})",
            self.dtype(),
            self.storage(),
            self.shape(),
            self.origin()
        )
    }
}
