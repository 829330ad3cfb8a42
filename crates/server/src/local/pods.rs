//! Pods as they are listed: all of them, or those that were asked for.

use std::sync::Arc;

use podwright_agent::feed::PodView;

use super::answer::{Room, list as list_of};
use super::failure::Failure;
use super::params::Params;
use super::selector::Selector;
use crate::serve::Answer;

/// Which pods are meant.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    namespace: Option<String>,
    selector: Selector,
}

impl Wanted {
    pub(super) fn read(namespace: Option<String>, params: &mut Params) -> Result<Self, Failure> {
        let (labels, fields) = (params.text("labelSelector"), params.text("fieldSelector"));
        let selector = Selector::read(labels.as_deref(), fields.as_deref(), &FIELDS)?;
        Ok(Self { namespace, selector })
    }

    pub(super) fn is(&self, view: &PodView) -> bool {
        let labels = view.object.metadata.labels.as_ref();
        self.namespace.as_deref().is_none_or(|namespace| namespace == view.namespace())
            && self.selector.matches(labels, |name| field(view, name))
    }
}

pub(super) fn list(room: &Room, namespace: Option<String>, mut params: Params) -> Result<Answer, Failure> {
    let wanted = Wanted::read(namespace, &mut params)?;
    // Always the newest.
    params.text("resourceVersion");
    params.text("timeoutSeconds");
    params.finish()?;
    let (version, views) = room.local.feed.list();
    let views: Vec<Arc<PodView>> = views.into_iter().filter(|view| wanted.is(view)).collect();
    Ok(list_of("PodList", version, views))
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
