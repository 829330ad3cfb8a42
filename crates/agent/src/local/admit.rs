//! Create, update and delete by the rules of an API server: defaults, validation, immutable fields.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use podwright_core::defaults::default_pod;
use podwright_core::model::{FullName, Pod, Source, full_name, is_terminal};
use podwright_core::qos::qos_class;
use podwright_core::static_pod::{CONFIG_HASH, CONFIG_MIRROR, CONFIG_SEEN, CONFIG_SOURCE, api_reference};
use podwright_core::validate::{FieldError, validate_pod, validate_pod_update};

use super::{Objects, POD_BYTES_MAX, PODS_MAX, PodRequestError, Store, find_by_name};
use crate::feed::PodView;

/// The options of a delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// `gracePeriodSeconds`; `None`: that of the pod.
    pub grace: Option<i64>,
    /// Precondition: the pod's UID.
    pub uid: Option<String>,
    /// Precondition: the pod's resourceVersion.
    pub resource_version: Option<String>,
    /// Return the result without applying it.
    pub dry_run: bool,
}

impl Store {
    /// Creates a pod in this namespace.
    pub async fn create(
        self: &Arc<Self>,
        namespace: String,
        pod: Pod,
        dry_run: bool,
    ) -> Result<Arc<PodView>, PodRequestError> {
        let store = Arc::clone(self);
        finish(async move { store.create_now(&namespace, pod, dry_run).await }).await
    }

    /// Replaces the pod of this name.
    pub async fn update(
        self: &Arc<Self>,
        of: FullName,
        pod: Pod,
        dry_run: bool,
    ) -> Result<Arc<PodView>, PodRequestError> {
        let store = Arc::clone(self);
        finish(async move { store.update_now(&of, pod, dry_run).await }).await
    }

    /// Marks the pod of this name for deletion. The object is removed when the pod has terminated.
    pub async fn delete(
        self: &Arc<Self>,
        of: FullName,
        options: DeleteOptions,
    ) -> Result<Arc<PodView>, PodRequestError> {
        let store = Arc::clone(self);
        finish(async move { store.delete_now(&of, &options).await }).await
    }

    /// Creates a terminated pod again, with a new UID.
    pub async fn recreate(self: &Arc<Self>, of: FullName) -> Result<Arc<PodView>, PodRequestError> {
        let store = Arc::clone(self);
        finish(async move { store.recreate_now(&of).await }).await
    }

    async fn create_now(&self, namespace: &str, mut pod: Pod, dry_run: bool) -> Result<Arc<PodView>, PodRequestError> {
        self.prepare(&mut pod, namespace)?;
        let mut objects = self.objects.lock().await;
        let of = full_name(&pod);
        let name = of.name.to_string();
        if find_by_name(&objects, &of).is_some() {
            return Err(PodRequestError::AlreadyExists { name });
        }
        if let Some(view) = self.feed.by_name(&of.namespace, &of.name) {
            let origin = view.origin.as_deref().unwrap_or_default().into();
            return Err(PodRequestError::Taken { name, from: view.source, origin });
        }
        if objects.len() >= PODS_MAX {
            return Err(PodRequestError::Full { name, max: PODS_MAX });
        }
        if dry_run {
            return Ok(dry_run_view(pod, 0));
        }
        self.put(&mut objects, pod).await
    }

    async fn update_now(&self, of: &FullName, mut pod: Pod, dry_run: bool) -> Result<Arc<PodView>, PodRequestError> {
        let mut objects = self.objects.lock().await;
        let (old, version) = self.find_own(&objects, of)?;
        set_name(&mut pod.metadata, of)?;
        let given = (pod.metadata.uid.as_deref(), pod.metadata.resource_version.as_deref());
        meets(&of.name, &old.metadata, version, given)?;
        inherit(&mut pod, &old);
        let spec = pod.spec.get_or_insert_default();
        if spec.node_name.as_deref().unwrap_or_default().is_empty() {
            spec.node_name = Some(self.node.clone());
        }
        default_pod(&mut pod);
        let mut errors = validate_pod_update(&pod, &old);
        errors.extend(self.unsupported(&pod));
        check(&pod, errors)?;
        if pod.spec != old.spec {
            pod.metadata.generation = pod.metadata.generation.map(|generation| generation + 1);
        }
        if dry_run {
            return Ok(dry_run_view(pod, version));
        }
        if pod == *old {
            return self.feed.get(&super::uid_of(&old)).ok_or(PodRequestError::NotFound { name: of.name.to_string() });
        }
        self.put(&mut objects, pod).await
    }

    async fn recreate_now(&self, of: &FullName) -> Result<Arc<PodView>, PodRequestError> {
        let mut objects = self.objects.lock().await;
        let (old, _) = self.find_own(&objects, of)?;
        let (name, old_uid) = (of.name.to_string(), super::uid_of(&old));
        if old.metadata.deletion_timestamp.is_some() {
            return Err(PodRequestError::Conflict { name, why: "the pod is being deleted".into() });
        }
        let phase = self.feed.get(&old_uid).and_then(|view| view.status.as_ref()?.phase.clone());
        if !is_terminal(phase.as_deref()) {
            return Err(PodRequestError::Conflict { name, why: "the pod has not ended".into() });
        }
        let mut pod = Pod::clone(&old);
        self.prepare(&mut pod, &of.namespace)?;
        self.replace(&mut objects, &old_uid, pod).await
    }

    async fn delete_now(&self, of: &FullName, options: &DeleteOptions) -> Result<Arc<PodView>, PodRequestError> {
        let mut objects = self.objects.lock().await;
        let (old, version) = self.find_own(&objects, of)?;
        meets(&of.name, &old.metadata, version, (options.uid.as_deref(), options.resource_version.as_deref()))?;
        let own = old.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds);
        let grace = options.grace.or(own).unwrap_or(GRACE_DEFAULT).min(GRACE_MAX);
        if grace < 0 {
            return Err(PodRequestError::BadRequest { why: format!("gracePeriodSeconds {grace} must be at least 0") });
        }
        let pod = marked_for_deletion(&old, grace, Timestamp::now());
        match pod {
            Some(pod) if options.dry_run => Ok(dry_run_view(pod, version)),
            Some(pod) => self.put(&mut objects, pod).await,
            // It is being deleted already, with a grace period that is not longer.
            None => self.feed.get(&super::uid_of(&old)).ok_or(PodRequestError::NotFound { name: of.name.to_string() }),
        }
    }

    /// The object and its version, if it belongs to the store.
    fn find_own(&self, objects: &Objects, of: &FullName) -> Result<(Arc<Pod>, u64), PodRequestError> {
        let name = of.name.to_string();
        if let Some(pod) = find_by_name(objects, of) {
            let version = self.feed.get(&super::uid_of(pod)).map_or(0, |view| view.version);
            return Ok((Arc::clone(pod), version));
        }
        Err(match self.feed.by_name(&of.namespace, &of.name) {
            Some(view) => {
                let origin = view.origin.as_deref().unwrap_or_default().into();
                PodRequestError::Foreign { name, from: view.source, origin }
            }
            None => PodRequestError::NotFound { name },
        })
    }

    /// Sets the fields that a server sets, and validates the pod.
    fn prepare(&self, pod: &mut Pod, namespace: &str) -> Result<(), PodRequestError> {
        if pod.metadata.resource_version.as_deref().is_some_and(|version| !version.is_empty()) {
            return Err(PodRequestError::BadRequest {
                why: "resourceVersion should not be set on objects to be created".into(),
            });
        }
        set_namespace(&mut pod.metadata, namespace)?;
        let uid = fresh_uid()?;
        let meta = &mut pod.metadata;
        if meta.name.as_deref().unwrap_or_default().is_empty()
            && let Some(base) = meta.generate_name.as_deref().filter(|base| !base.is_empty())
        {
            meta.name = Some(generate_name(base, &uid));
        }
        clear_server_fields(meta);
        meta.uid = Some(uid);
        meta.creation_timestamp = Some(Time(whole_second(Timestamp::now())));
        meta.generation = Some(1);
        set_source(meta);
        let spec = pod.spec.get_or_insert_default();
        if spec.node_name.as_deref().unwrap_or_default().is_empty() {
            spec.node_name = Some(self.node.clone());
        }
        default_pod(pod);
        let class = qos_class(pod).to_owned();
        pod.status = Some(PodStatus { phase: Some("Pending".into()), qos_class: Some(class), ..PodStatus::default() });
        let mut errors = validate_pod(pod);
        errors.extend(self.unsupported(pod));
        check(pod, errors)
    }

    /// Fields that an API server accepts and a single node can't support.
    fn unsupported(&self, pod: &Pod) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let mut wrong = |path: &str, message: String| errors.push(FieldError { path: path.into(), message });
        let spec = pod.spec.as_ref();
        if let Some(node) = spec.and_then(|s| s.node_name.as_deref()).filter(|node| *node != self.node) {
            wrong("spec.nodeName", format!("{node:?} is not this node: write {:?}, or nothing", self.node));
        }
        if spec.and_then(|s| s.ephemeral_containers.as_ref()).is_some_and(|list| !list.is_empty()) {
            wrong("spec.ephemeralContainers", "can't be given here: write them as containers".into());
        }
        if pod.metadata.finalizers.as_ref().is_some_and(|list| !list.is_empty()) {
            wrong("metadata.finalizers", "must be empty: no controller on this node removes them".into());
        }
        if let Some((path, what)) = api_reference(pod) {
            wrong(&path, format!("refers to {what}, which only an API server has: remove it"));
        }
        errors
    }
}

/// Completes the work even if the client disconnects.
async fn finish<T: Send + 'static>(
    work: impl Future<Output = Result<T, PodRequestError>> + Send + 'static,
) -> Result<T, PodRequestError> {
    podwright_tasks::spawn("store-write", work)
        .await
        .unwrap_or_else(|error| Err(PodRequestError::Disk { message: error.to_string() }))
}

fn check(pod: &Pod, errors: Vec<FieldError>) -> Result<(), PodRequestError> {
    if !errors.is_empty() {
        let meta = &pod.metadata;
        let name = meta.name.clone().or_else(|| meta.generate_name.clone()).unwrap_or_default();
        return Err(PodRequestError::Invalid { name, errors });
    }
    match serde_json::to_vec(pod) {
        Ok(text) if text.len() <= POD_BYTES_MAX => Ok(()),
        _ => Err(PodRequestError::TooLarge { max: POD_BYTES_MAX }),
    }
}

fn set_name(meta: &mut ObjectMeta, of: &FullName) -> Result<(), PodRequestError> {
    set_namespace(meta, &of.namespace)?;
    let name = meta.name.get_or_insert_with(|| of.name.to_string());
    if **name != *of.name {
        let why = format!("the name of the object ({name}) does not match the name on the URL ({})", of.name);
        return Err(PodRequestError::BadRequest { why });
    }
    Ok(())
}

fn set_namespace(meta: &mut ObjectMeta, namespace: &str) -> Result<(), PodRequestError> {
    match meta.namespace.as_deref().unwrap_or_default() {
        "" => meta.namespace = Some(namespace.into()),
        given if given == namespace => {}
        given => {
            let why = format!(
                "the namespace of the provided object does not match the namespace sent on the request: {given:?}, {namespace:?}"
            );
            return Err(PodRequestError::BadRequest { why });
        }
    }
    Ok(())
}

/// UID and version, where they are given, must be those the object has.
fn meets(
    name: &str,
    meta: &ObjectMeta,
    version: u64,
    given: (Option<&str>, Option<&str>),
) -> Result<(), PodRequestError> {
    let name = name.to_owned();
    let own = meta.uid.as_deref().unwrap_or_default();
    if let Some(uid) = given.0.filter(|uid| !uid.is_empty() && *uid != own) {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {own}");
        return Err(PodRequestError::Conflict { name, why });
    }
    if given.1.is_some_and(|asked| !asked.is_empty() && *asked != version.to_string()) {
        let why = "the object has been modified; please apply your changes to the latest version and try again".into();
        return Err(PodRequestError::Conflict { name, why });
    }
    Ok(())
}

/// Keeps the fields that the server owns.
fn inherit(pod: &mut Pod, old: &Pod) {
    let (meta, was) = (&mut pod.metadata, &old.metadata);
    clear_server_fields(meta);
    meta.uid = was.uid.clone();
    meta.creation_timestamp = was.creation_timestamp.clone();
    meta.deletion_timestamp = was.deletion_timestamp.clone();
    meta.deletion_grace_period_seconds = was.deletion_grace_period_seconds;
    meta.generation = was.generation;
    meta.generate_name = was.generate_name.clone();
    set_source(meta);
    pod.status = old.status.clone();
}

fn clear_server_fields(meta: &mut ObjectMeta) {
    meta.resource_version = None;
    meta.self_link = None;
    meta.managed_fields = None;
    meta.deletion_timestamp = None;
    meta.deletion_grace_period_seconds = None;
}

/// Sets the annotation of the source, which also sandboxes carry. A client can't claim another source.
fn set_source(meta: &mut ObjectMeta) {
    let annotations = meta.annotations.get_or_insert_default();
    for key in [CONFIG_HASH, CONFIG_MIRROR, CONFIG_SEEN] {
        annotations.remove(key);
    }
    annotations.insert(CONFIG_SOURCE.into(), Source::Local.as_str().into());
}

/// The pod with a deletionTimestamp; `None` if it has one that is not later.
fn marked_for_deletion(old: &Pod, grace: i64, now: Timestamp) -> Option<Pod> {
    let mut pod = old.clone();
    let meta = &mut pod.metadata;
    let at = match (&meta.deletion_timestamp, meta.deletion_grace_period_seconds) {
        (Some(_), Some(had)) if grace >= had => return None,
        // The grace period began with the first delete.
        (Some(at), Some(had)) => at.0.saturating_sub(SignedDuration::from_secs(had - grace)).ok()?,
        _ => now.saturating_add(SignedDuration::from_secs(grace)).ok()?,
    };
    meta.deletion_timestamp = Some(Time(whole_second(at)));
    meta.deletion_grace_period_seconds = Some(grace);
    meta.generation = meta.generation.map(|generation| generation + 1);
    Some(pod)
}

fn dry_run_view(pod: Pod, version: u64) -> Arc<PodView> {
    Arc::new(PodView::dry_run(pod, Source::Local, version))
}

/// Timestamps of the API have a resolution of one second.
fn whole_second(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

fn fresh_uid() -> Result<String, PodRequestError> {
    let text =
        std::fs::read_to_string("/proc/sys/kernel/random/uuid").map_err(|error| PodRequestError::disk(&error))?;
    Ok(text.trim().to_owned())
}

/// A name from `generateName`, as an API server generates it: the truncated prefix and five random characters.
fn generate_name(base: &str, uid: &str) -> String {
    let base: String = base.chars().take(NAME_BASE_MAX).collect();
    let letters = ALPHABET.as_bytes();
    // The last 12 digits of a random UUID are all random.
    let mut number = u64::from_str_radix(uid.rsplit('-').next().unwrap_or_default(), 16).unwrap_or_default();
    let mut end = String::new();
    for _ in 0..5 {
        end.push(char::from(letters[usize::try_from(number % letters.len() as u64).unwrap_or_default()]));
        number /= letters.len() as u64;
    }
    base + &end
}

/// Kubernetes: `DefaultTerminationGracePeriodSeconds`.
const GRACE_DEFAULT: i64 = 30;
/// A century, in seconds: keeps the deletionTimestamp representable.
const GRACE_MAX: i64 = 100 * 366 * 86_400;
/// Kubernetes: generated names have at most 63 characters, five of them random.
const NAME_BASE_MAX: usize = 58;
const ALPHABET: &str = "bcdfghjklmnpqrstvwxz2456789";
