//! A thread of a device's that drops what batches kept alive, where nobody else would, or where those
//! who could must not.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

/// Starts with the first job.
pub(crate) struct Reaper<T>(Mutex<Option<(Sender<T>, JoinHandle<()>)>>);

impl<T> Default for Reaper<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> std::fmt::Debug for Reaper<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reaper")
    }
}

impl<T: Send + 'static> Reaper<T> {
    /// Where jobs go, which `run` does in order; `None` where there is no thread to be had.
    pub(crate) fn sender(&self, run: fn(T)) -> Option<Sender<T>> {
        let mut reaper = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if reaper.is_none() {
            let (to, from) = channel::<T>();
            let thread = std::thread::Builder::new().name("aquifer-reaper".to_owned());
            let started = thread.spawn(move || from.into_iter().for_each(run));
            *reaper = started.ok().map(|thread| (to, thread));
        }
        reaper.as_ref().map(|(sender, _)| sender.clone())
    }
}

impl<T> Drop for Reaper<T> {
    fn drop(&mut self) {
        let reaper = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((sender, thread)) = reaper {
            drop(sender);
            // All queues were waited for, so it ends at once. A driver must not be at work on
            // another thread when the process ends. What this thread itself drops is the last.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}
