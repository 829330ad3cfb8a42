//! A bug in one pod is that pod's: a panic costs the pod whose event was handled, and nobody else.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Node;
use crate::model::{Event, Now, Out, PodUid};

/// A panic that was caught.
#[derive(Clone, Debug)]
pub struct Caught {
    /// The pod that was put in quarantine for it, if it was about one.
    pub uid: Option<PodUid>,
    /// The panic's own words.
    pub why: String,
}

impl Node {
    /// As [`Node::handle`], and a pod that makes it panic is set aside: what it asked for half-way is not trusted, the others go
    /// on.
    pub fn handle_guarded(&mut self, event: Event, now: Now, out: &mut Out) -> Vec<Caught> {
        let mut caught = Vec::new();
        let mut handled = catch_unwind(AssertUnwindSafe(|| self.handle(event, now, out)));
        while let Err(panic) = handled {
            let why = words(&*panic);
            let uid = self.quarantine_current(&why, now, out);
            let about_a_pod = uid.is_some();
            caught.push(Caught { uid, why });
            handled = catch_unwind(AssertUnwindSafe(|| self.settle_and_schedule(now, out)));
            if !about_a_pod {
                break;
            }
        }
        caught
    }
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "unknown".into())
}
