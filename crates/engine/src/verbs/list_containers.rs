//! ListContainers.

use podwright_cri::v1;

use super::{VerbContext, has_labels};
use crate::views;

pub(crate) fn list_containers(calls: VerbContext<'_>, filter: Option<v1::ContainerFilter>) -> Vec<v1::Container> {
    let filter = filter.unwrap_or_default();
    let objects = calls.context.objects();
    let shown = objects.containers.keys().filter_map(|id| views::listed_container(&objects, id));
    let matches = |container: &v1::Container| {
        container.id.starts_with(&filter.id)
            && container.pod_sandbox_id.starts_with(&filter.pod_sandbox_id)
            && filter.state.as_ref().is_none_or(|state| state.state == container.state)
            && has_labels(&container.labels, &filter.label_selector)
    };
    shown.filter(matches).collect()
}
