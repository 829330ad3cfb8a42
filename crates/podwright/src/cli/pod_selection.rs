//! The pods that a command acts on: names, a label selector, or all pods of a namespace.
//!
//! Names are given as to kubectl: `web`, `pod/web` or `pod web`. Another resource type is an error, never the name of a pod: the
//! user of `delete configmap db` did not mean the pod `db`.

use clap::Args;

use super::query_flags::Scope;

/// The pods of a command.
#[derive(Args, Debug)]
pub(crate) struct PodSelection {
    /// The pods: `web`, `pod/web` or `pod web`; the node name at the end of a static pod's name may be omitted.
    #[arg(value_name = "POD", conflicts_with_all = ["selector", "all"])]
    pods: Vec<String>,
    /// The pods that match this label selector: `app=web,tier!=db`.
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "all")]
    pub(crate) selector: Option<String>,
    /// All pods of the namespace, or of all namespaces with -A.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    pub(crate) scope: Scope,
}

/// Why the arguments of a command name no pods.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PodArgumentError {
    #[error("resource type {kind:?} is not supported, only pods are: a pod of that name is pod/{kind}")]
    OtherKind { kind: String },
    #[error("{kind:?} is a resource type, and no name follows it: a pod of that name is pod/{kind}")]
    NoName { kind: String },
    #[error("specify a pod, a label selector with -l, or --all")]
    Nothing,
    #[error("the label selector -l {0:?} is empty: it would select every pod, which is --all")]
    EmptySelector(String),
    #[error("a pod cannot be named across all namespaces: use -n NAMESPACE")]
    NameInAllNamespaces,
}

impl PodSelection {
    /// The names; empty if a selector or `--all` is given.
    pub(crate) fn names(&self) -> Result<Vec<&str>, PodArgumentError> {
        let names = pod_names(&self.pods)?;
        // An unset variable in a script must not select all pods.
        let blank = |text: &&String| text.split(',').all(|term| term.trim().is_empty());
        if let Some(selector) = self.selector.as_ref().filter(blank) {
            return Err(PodArgumentError::EmptySelector(selector.clone()));
        }
        match (names.is_empty(), self.scope.all_namespaces) {
            (true, _) if self.selector.is_none() && !self.all => Err(PodArgumentError::Nothing),
            (false, true) => Err(PodArgumentError::NameInAllNamespaces),
            _ => Ok(names),
        }
    }

    /// `name` is the first of several arguments, where a resource type would be.
    pub(crate) fn may_be_kind(&self, name: &str) -> bool {
        self.pods.len() > 1 && self.pods.first().is_some_and(|first| first == name)
    }

    /// Neither names nor a selector nor `--all`.
    pub(crate) fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.selector.is_none() && !self.all
    }
}

/// The names in arguments like `web db`, `pod/web pod/db` or `pods web db`.
pub(crate) fn pod_names(arguments: &[String]) -> Result<Vec<&str>, PodArgumentError> {
    let names = match arguments.split_first() {
        Some((kind, [])) if is_pod_kind(kind) => return Err(PodArgumentError::NoName { kind: kind.clone() }),
        Some((kind, names)) if is_pod_kind(kind) => names,
        Some((kind, _)) if is_other_kind(kind) => return Err(PodArgumentError::OtherKind { kind: kind.clone() }),
        _ => arguments,
    };
    names.iter().map(|argument| pod_name(argument)).collect()
}

/// The name in `web` or `pod/web`.
pub(crate) fn pod_name(argument: &str) -> Result<&str, PodArgumentError> {
    match argument.split_once('/') {
        None => Ok(argument),
        Some((kind, "")) => Err(PodArgumentError::NoName { kind: kind.into() }),
        Some((kind, name)) if is_pod_kind(kind) && !name.contains('/') => Ok(name),
        Some((kind, _)) => Err(PodArgumentError::OtherKind { kind: kind.into() }),
    }
}

pub(super) fn is_pod_kind(argument: &str) -> bool {
    ["pod", "pods", "po"].iter().any(|kind| argument.eq_ignore_ascii_case(kind))
}

/// A resource type of Kubernetes other than pods, with or without an API group: `configmap`, `deploy`, `deployments.apps`.
pub(crate) fn is_other_kind(argument: &str) -> bool {
    let argument = argument.to_ascii_lowercase();
    let (kind, group) = argument.split_once('.').unwrap_or((&argument, ""));
    let known_group = GROUPS.contains(&group) || group.ends_with(".k8s.io");
    known_group && KINDS.iter().any(|(singular, short)| is_form_of(kind, singular) || short.contains(&kind))
}

/// The singular or plural of this resource type.
fn is_form_of(kind: &str, singular: &str) -> bool {
    let Some(ending) = kind.strip_prefix(singular) else {
        return singular.strip_suffix('y').is_some_and(|stem| kind.strip_suffix("ies") == Some(stem));
    };
    ["", "s", "es"].contains(&ending)
}

/// The suffixes of resource types, such as `apps` in `deployments.apps`; empty: none.
const GROUPS: [&str; 7] = ["", "apps", "batch", "autoscaling", "policy", "v1", "v1.apps"];

/// Kubernetes: the resource types of `kubectl api-resources`, singular, with their short names.
const KINDS: &[(&str, &[&str])] = &[
    ("all", &[]),
    ("certificatesigningrequest", &["csr"]),
    ("clusterrole", &[]),
    ("clusterrolebinding", &[]),
    ("componentstatus", &["cs"]),
    ("configmap", &["cm"]),
    ("controllerrevision", &[]),
    ("cronjob", &["cj"]),
    ("csidriver", &[]),
    ("customresourcedefinition", &["crd", "crds"]),
    ("daemonset", &["ds"]),
    ("deployment", &["deploy"]),
    ("endpoints", &["ep", "endpoint"]),
    ("endpointslice", &[]),
    ("event", &["ev"]),
    ("horizontalpodautoscaler", &["hpa"]),
    ("ingress", &["ing"]),
    ("ingressclass", &[]),
    ("job", &[]),
    ("lease", &[]),
    ("limitrange", &["limits"]),
    ("namespace", &["ns"]),
    ("networkpolicy", &["netpol"]),
    ("node", &["no"]),
    ("persistentvolume", &["pv"]),
    ("persistentvolumeclaim", &["pvc"]),
    ("poddisruptionbudget", &["pdb"]),
    ("podtemplate", &[]),
    ("priorityclass", &["pc"]),
    ("replicaset", &["rs"]),
    ("replicationcontroller", &["rc"]),
    ("resourcequota", &["quota"]),
    ("role", &[]),
    ("rolebinding", &[]),
    ("runtimeclass", &[]),
    ("secret", &[]),
    ("service", &["svc"]),
    ("serviceaccount", &["sa"]),
    ("statefulset", &["sts"]),
    ("storageclass", &["sc"]),
    ("volumeattachment", &[]),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn names(line: &str) -> Result<Vec<String>, PodArgumentError> {
        let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        pod_names(&arguments).map(|names| names.into_iter().map(str::to_owned).collect())
    }

    #[test]
    fn names_are_written_as_for_kubectl() {
        for line in ["web db", "pod web db", "pods web db", "po/web pod/db", "web pods/db", "pod pod/web db"] {
            assert_eq!(names(line), Ok(vec!["web".into(), "db".into()]), "{line}");
        }
        // A pod may have the name of a resource type.
        assert_eq!(names("pod/configmap"), Ok(vec!["configmap".into()]));
        assert_eq!(names("pod pod"), Ok(vec!["pod".into()]));
        assert_eq!(names("services-of-web node-exporter"), Ok(vec!["services-of-web".into(), "node-exporter".into()]));
    }

    #[test]
    fn other_kinds_are_no_names() {
        for kind in [
            "configmap",
            "ConfigMaps",
            "cm",
            "policy/x",
            "networkpolicies",
            "ingresses",
            "deployments.apps",
            "svc",
            "pvc/x",
        ] {
            assert!(matches!(names(&format!("{kind} db")), Err(PodArgumentError::OtherKind { .. })), "{kind}");
        }
        assert!(matches!(names("web configmap/db"), Err(PodArgumentError::OtherKind { .. })));
        assert!(matches!(names("default/web"), Err(PodArgumentError::OtherKind { .. })));
        for line in ["pod", "pods", "pod/", "web pod/"] {
            assert!(matches!(names(line), Err(PodArgumentError::NoName { .. })), "{line}");
        }
    }
}
