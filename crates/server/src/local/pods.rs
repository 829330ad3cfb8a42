//! Listing pods by namespace, labels and fields.

use std::sync::Arc;

use podwright_agent::feed::PodView;
use podwright_core::model::{FullName, Pod};

use super::router::{LocalState, list as list_of, object};
use super::selector::Selector;
use super::table::{self, ObjectForm};
use crate::query::QueryParams;
use crate::serve::HttpResponse;
use crate::status_error::StatusError;

/// The namespace, labels and fields that a list or watch selects by.
#[derive(Clone, Debug)]
pub(super) struct PodFilter {
    namespace: Option<String>,
    selector: Selector,
}

impl PodFilter {
    pub(super) fn parse(namespace: Option<String>, params: &mut QueryParams) -> Result<Self, StatusError> {
        let (labels, fields) = (params.text("labelSelector"), params.text("fieldSelector"));
        let selector = Selector::parse(labels.as_deref(), fields.as_deref(), &FIELDS)?;
        Ok(Self { namespace, selector })
    }

    pub(super) fn matches(&self, view: &PodView) -> bool {
        let labels = view.object.metadata.labels.as_ref();
        self.namespace.as_deref().is_none_or(|namespace| namespace == view.namespace())
            && self.selector.matches(labels, |name| field(view, name))
    }
}

pub(super) fn list(
    state: &LocalState,
    namespace: Option<String>,
    form: ObjectForm,
    mut params: QueryParams,
) -> Result<HttpResponse, StatusError> {
    let filter = PodFilter::parse(namespace, &mut params)?;
    // Accepted and ignored: the list is always current.
    params.text("resourceVersion");
    params.text("timeoutSeconds");
    params.finish()?;
    let images = state.api.images.as_deref().ok();
    let (version, views) = state.api.feed.list();
    let views: Vec<Arc<PodView>> = views.into_iter().filter(|view| filter.matches(view)).collect();
    match form {
        ObjectForm::Object => Ok(list_of("PodList", version, views)),
        ObjectForm::Table(rows) => {
            let pods: Vec<Pod> = views.iter().map(|view| view.pod()).collect();
            Ok(object(&table::of_pods(state.api.cells, rows, Some(version), &pods, images)))
        }
    }
}

pub(super) fn one(
    state: &LocalState,
    of: &FullName,
    form: ObjectForm,
    mut params: QueryParams,
) -> Result<HttpResponse, StatusError> {
    params.text("resourceVersion");
    params.finish()?;
    let images = state.api.images.as_deref().ok();
    let view = state.pod(of)?;
    Ok(match form {
        ObjectForm::Object => object(&*view),
        ObjectForm::Table(rows) => object(&table::of_pods(state.api.cells, rows, None, &[view.pod()], images)),
    })
}

fn field<'a>(view: &'a PodView, name: &str) -> Option<&'a str> {
    let (meta, spec, status) = (&view.object.metadata, view.object.spec.as_ref(), view.status.as_ref());
    match name {
        "metadata.name" => meta.name.as_deref(),
        "metadata.namespace" => meta.namespace.as_deref(),
        "metadata.uid" => meta.uid.as_deref(),
        "spec.nodeName" => spec.and_then(|s| s.node_name.as_deref()),
        "spec.restartPolicy" => spec.and_then(|s| s.restart_policy.as_deref()),
        "status.phase" => status.and_then(|s| s.phase.as_deref()),
        _ => None,
    }
}

const FIELDS: [&str; 6] =
    ["metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.restartPolicy", "status.phase"];
