//! Pods for the world: small, but with everything the machines in core look at.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, ExecAction, Lifecycle, LifecycleHandler, Pod, PodSpec, Probe, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podwright_core::model::{Manifest, Source};

/// A pod to be.
#[derive(Clone, Debug)]
pub struct PodPlan {
    /// Its name, without the node's.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Where it comes from.
    pub source: Source,
    /// The file it is in.
    pub origin: String,
    /// `restartPolicy`.
    pub policy: &'static str,
    /// `terminationGracePeriodSeconds`.
    pub grace: i64,
    /// Init containers; true: restartable ones, sidecars.
    pub inits: Vec<(Part, bool)>,
    /// App containers.
    pub apps: Vec<Part>,
    /// How many volumes.
    pub volumes: usize,
}

/// A container to be.
#[derive(Clone, Debug, Default)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Its image.
    pub image: String,
    /// `imagePullPolicy` Always.
    pub always_pull: bool,
    /// Its place in the world's list of behaviours.
    pub behaviour: usize,
    /// It has a postStart hook.
    pub post_start: bool,
    /// It has a preStop hook.
    pub pre_stop: bool,
    /// It has a startup probe.
    pub startup: bool,
    /// It has a readiness probe.
    pub readiness: bool,
    /// It has a liveness probe.
    pub liveness: bool,
}

impl Part {
    /// A plain container.
    pub fn new(name: &str, behaviour: usize) -> Self {
        Self { name: name.into(), image: "app:1".into(), behaviour, ..Self::default() }
    }

    fn container(&self, sidecar: bool) -> Container {
        let hook = |has: bool| {
            has.then(|| LifecycleHandler { exec: Some(ExecAction { command: None }), ..LifecycleHandler::default() })
        };
        let probe = |has: bool, period: i32| {
            has.then(|| Probe {
                exec: Some(ExecAction { command: None }),
                period_seconds: Some(period),
                timeout_seconds: Some(1),
                success_threshold: Some(1),
                failure_threshold: Some(2),
                initial_delay_seconds: Some(0),
                ..Probe::default()
            })
        };
        let lifecycle = (self.post_start || self.pre_stop).then(|| Lifecycle {
            post_start: hook(self.post_start),
            pre_stop: hook(self.pre_stop),
            stop_signal: None,
        });
        Container {
            name: self.name.clone(),
            image: Some(self.image.clone()),
            image_pull_policy: Some(if self.always_pull { "Always" } else { "IfNotPresent" }.into()),
            command: Some(vec![self.behaviour.to_string()]),
            lifecycle,
            restart_policy: sidecar.then(|| "Always".into()),
            startup_probe: probe(self.startup, 2),
            readiness_probe: probe(self.readiness, 10),
            liveness_probe: probe(self.liveness, 10),
            ..Container::default()
        }
    }
}

impl PodPlan {
    /// A pod with these app containers and nothing else.
    pub fn new(name: &str, uid: &str, apps: Vec<Part>) -> Self {
        Self {
            name: name.into(),
            uid: uid.into(),
            source: Source::File,
            origin: format!("/manifests/{name}.yaml"),
            policy: "Always",
            grace: 5,
            inits: vec![],
            apps,
            volumes: 0,
        }
    }

    /// What tells this content from another of the same pod.
    fn hash(&self) -> String {
        let images: Vec<&str> = self.apps.iter().map(|part| part.image.as_str()).collect();
        format!("{}-{}-{}-{}", self.uid, self.grace, self.apps[0].behaviour, images.join("-"))
    }

    /// As a source delivers it.
    pub fn manifest(&self) -> Manifest {
        let volume =
            |n| Volume { name: format!("v{n}"), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() };
        let inits: Vec<Container> = self.inits.iter().map(|(part, sidecar)| part.container(*sidecar)).collect();
        let volumes: Vec<Volume> = (0..self.volumes).map(volume).collect();
        let annotations = BTreeMap::from([
            ("kubernetes.io/config.source".to_owned(), self.source.as_str().to_owned()),
            ("kubernetes.io/config.hash".to_owned(), self.hash()),
        ]);
        let pod = Pod {
            metadata: ObjectMeta {
                name: Some(format!("{}-node", self.name)),
                namespace: Some("default".into()),
                uid: Some(self.uid.clone()),
                annotations: Some(annotations),
                ..ObjectMeta::default()
            },
            spec: Some(PodSpec {
                node_name: Some("node".into()),
                restart_policy: Some(self.policy.into()),
                termination_grace_period_seconds: Some(self.grace),
                init_containers: (!inits.is_empty()).then_some(inits),
                containers: self.apps.iter().map(|part| part.container(false)).collect(),
                volumes: (!volumes.is_empty()).then_some(volumes),
                ..PodSpec::default()
            }),
            status: None,
        };
        Manifest { pod: Arc::new(pod), origin: self.origin.clone() }
    }
}

/// The behaviour a container's spec names.
pub fn behaviour_of(container: &Container) -> usize {
    container.command.iter().flatten().next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// A container of a pod by its name, and whether it is an init container.
pub fn find<'a>(pod: &'a Pod, name: &str) -> Option<(&'a Container, bool)> {
    let spec = pod.spec.as_ref()?;
    let init = spec.init_containers.iter().flatten().find(|c| c.name == name).map(|c| (c, true));
    init.or_else(|| spec.containers.iter().find(|c| c.name == name).map(|c| (c, false)))
}

/// The place of a sidecar among the init containers.
pub fn sidecar_index(pod: &Pod, name: &str) -> Option<usize> {
    let inits = pod.spec.as_ref()?.init_containers.as_ref()?;
    inits.iter().position(|c| c.name == name && podwright_core::model::is_sidecar(c))
}
