//! The pod whose event is being handled.

use std::fmt;
use std::sync::Arc;

use crate::model::PodUid;

/// Called with the pod that is being handled, so that the next process knows it if this one dies; `None`: no pod.
pub type CurrentPodObserver = Arc<dyn Fn(Option<&PodUid>) + Send + Sync>;

/// A panic is attributed to this pod.
#[derive(Clone, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub(super) struct CurrentPod {
    uid: Option<PodUid>,
    #[serde(skip)]
    observer: Option<CurrentPodObserver>,
}

impl CurrentPod {
    pub(super) fn set_observer(&mut self, observer: CurrentPodObserver) {
        self.observer = Some(observer);
    }

    /// Returns the pod that was handled before.
    pub(super) fn set(&mut self, uid: Option<PodUid>) -> Option<PodUid> {
        let before = std::mem::replace(&mut self.uid, uid);
        if let Some(observer) = self.observer.as_ref().filter(|_| before != self.uid) {
            observer(self.uid.as_ref());
        }
        before
    }
}

impl fmt::Debug for CurrentPod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.uid, f)
    }
}
