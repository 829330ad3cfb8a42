//! A thread of its own for work that blocks as long as the agent runs, supervised like a task.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

/// The end of a thread that [`spawn_thread`] started.
#[derive(Debug)]
pub struct ThreadEnd(oneshot::Receiver<Option<Box<dyn Any + Send>>>);

/// Starts a thread with this name. Its end is for [`crate::Tasks::service`] or [`crate::Tasks::job`]: otherwise a panic is lost.
pub fn spawn_thread(
    name: &'static str,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<(JoinHandle<()>, ThreadEnd)> {
    let (end, ended) = oneshot::channel();
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(run));
        // An error: its end is not supervised any more, as the process ends.
        let _ = end.send(result.err());
    })?;
    Ok((thread, ThreadEnd(ended)))
}

impl ThreadEnd {
    /// Returns when the thread has ended, and panics as the thread did.
    pub async fn wait(self) {
        if let Ok(Some(panic)) = self.0.await {
            resume_unwind(panic);
        }
    }
}
