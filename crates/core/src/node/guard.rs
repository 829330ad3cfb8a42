//! A panic quarantines the pod whose event was handled; the others continue.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Node;
use crate::model::{Event, Now, Out, PodUid};

/// A panic that was caught.
#[derive(Clone, Debug)]
pub struct Caught {
    /// The pod that was quarantined; `None` if the panic concerned no single pod.
    pub uid: Option<PodUid>,
    /// Message of the panic.
    pub why: String,
}

impl Node {
    /// As [`Node::handle`], but a pod that causes a panic is quarantined: its half-finished records and effects are dropped, and
    /// the others are handled.
    pub fn handle_guarded(&mut self, event: Event, now: Now, out: &mut Out) -> Vec<Caught> {
        let mut caught = Vec::new();
        let mut handled = catch_unwind(AssertUnwindSafe(|| self.handle_event(event, now, out)));
        while let Err(panic) = handled {
            let why = panic_message(&*panic);
            let uid = self.quarantine_current(&why, now, out);
            let about_a_pod = uid.is_some();
            caught.push(Caught { uid, why });
            handled = catch_unwind(AssertUnwindSafe(|| self.settle_and_schedule(now, out)));
            if !about_a_pod {
                break;
            }
        }
        caught.append(&mut self.pods.caught);
        caught
    }
}

pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown".into())
}
