//! ListPodSandbox.

use podwright_cri::v1;

use super::{VerbContext, has_labels};
use crate::views;

pub(crate) fn list_pod_sandbox(calls: VerbContext<'_>, filter: Option<v1::PodSandboxFilter>) -> Vec<v1::PodSandbox> {
    let filter = filter.unwrap_or_default();
    let objects = calls.context.objects();
    let shown = objects.sandboxes.keys().filter_map(|id| views::listed_sandbox(&objects, id));
    let matches = |sandbox: &v1::PodSandbox| {
        sandbox.id.starts_with(&filter.id)
            && filter.state.as_ref().is_none_or(|state| state.state == sandbox.state)
            && has_labels(&sandbox.labels, &filter.label_selector)
    };
    shown.filter(matches).collect()
}
