//! Pods for the simulation: small, but with every field that core's decisions depend on.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, ExecAction, Lifecycle, LifecycleHandler, Pod, PodSpec, Probe, Volume,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use podwright_core::model::{Manifest, Source, find_container};
use podwright_core::static_pod::CONFIG_SOURCE;

/// A pod to be written as a manifest.
#[derive(Clone, Debug)]
pub struct PodPlan {
    /// Without the node name's suffix.
    pub name: String,
    /// Becomes `metadata.uid`.
    pub uid: String,
    /// Written to the `config.source` annotation.
    pub source: Source,
    /// Path of the manifest file.
    pub origin: String,
    /// `restartPolicy`.
    pub policy: &'static str,
    /// `terminationGracePeriodSeconds`.
    pub grace: i64,
    /// Init containers; true: sidecars.
    pub inits: Vec<(ContainerPlan, bool)>,
    /// `spec.containers`.
    pub apps: Vec<ContainerPlan>,
    /// Number of emptyDir volumes.
    pub volumes: usize,
    /// `activeDeadlineSeconds`.
    pub active_deadline: Option<i64>,
    /// The user of an object writes this to its `config.source` annotation.
    pub claimed_source: Option<&'static str>,
}

/// A container of a [`PodPlan`].
#[derive(Clone, Debug, Default)]
pub struct ContainerPlan {
    /// Unique in its pod.
    pub name: String,
    /// As in the spec.
    pub image: String,
    /// `imagePullPolicy` Always.
    pub always_pull: bool,
    /// Index into `Runtime::scripts`.
    pub script: usize,
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

impl ContainerPlan {
    /// A container without hooks and probes.
    pub fn new(name: &str, script: usize) -> Self {
        Self { name: name.into(), image: "app:1".into(), script, ..Self::default() }
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
            command: Some(vec![self.script.to_string()]),
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
    pub fn new(name: &str, uid: &str, apps: Vec<ContainerPlan>) -> Self {
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
            active_deadline: None,
            claimed_source: None,
        }
    }

    /// Differs for different content of the same pod.
    fn hash(&self) -> String {
        let images: Vec<&str> = self.apps.iter().map(|c| c.image.as_str()).collect();
        format!("{}-{}-{}-{}", self.uid, self.grace, self.apps[0].script, images.join("-"))
    }

    /// The pod as a source delivers it.
    pub fn manifest(&self) -> Manifest {
        let volume =
            |n| Volume { name: format!("v{n}"), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() };
        let inits: Vec<Container> = self.inits.iter().map(|(c, sidecar)| c.container(*sidecar)).collect();
        let volumes: Vec<Volume> = (0..self.volumes).map(volume).collect();
        let annotations = BTreeMap::from([
            (CONFIG_SOURCE.to_owned(), self.source.as_str().to_owned()),
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
                active_deadline_seconds: self.active_deadline,
                init_containers: (!inits.is_empty()).then_some(inits),
                containers: self.apps.iter().map(|c| c.container(false)).collect(),
                volumes: (!volumes.is_empty()).then_some(volumes),
                ..PodSpec::default()
            }),
            status: None,
        };
        Manifest { pod: Arc::new(pod), origin: self.origin.clone() }
    }
}

/// The `config.source` annotation of a pod, which its sandbox gets.
pub fn source_of(pod: &Pod) -> Option<Source> {
    let annotations = pod.metadata.annotations.as_ref()?;
    annotations.get(CONFIG_SOURCE).and_then(|text| Source::parse(text))
}

/// The index of a container's script.
pub fn script_of(container: &Container) -> usize {
    container.command.iter().flatten().next().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// A container of a pod by its name, and whether it is an init container.
pub fn find<'a>(pod: &'a Pod, name: &str) -> Option<(Cow<'a, Container>, bool)> {
    let init = pod.spec.as_ref()?.init_containers.iter().flatten().any(|c| c.name == name);
    find_container(pod, name).map(|found| (found.container, init))
}

/// The container is an ephemeral one.
pub fn is_ephemeral(pod: &Pod, name: &str) -> bool {
    pod.spec.iter().flat_map(|spec| spec.ephemeral_containers.iter().flatten()).any(|c| c.name == name)
}

/// The index of a sidecar among the init containers.
pub fn sidecar_index(pod: &Pod, name: &str) -> Option<usize> {
    let inits = pod.spec.as_ref()?.init_containers.as_ref()?;
    inits.iter().position(|c| c.name == name && podwright_core::model::is_sidecar(c))
}
