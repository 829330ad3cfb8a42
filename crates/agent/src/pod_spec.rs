//! Values derived from a pod's object alone: its names, containers, volumes and field references, and its paths on the node.
//!
//! Pure: nothing here touches a file. `host` acts on these values, `translate` puts them into CRI messages.

mod containers;
pub mod field_ref;
mod huge_pages;
mod names;
mod paths;
mod volumes;

pub(crate) use containers::effective_run_as_user;
pub use field_ref::{Allocatable, FieldRefError};
pub(crate) use huge_pages::huge_page_limits;
pub use names::HostnameError;
pub(crate) use names::{
    container_cgroup_names, container_log_path, display_name, hostname_and_domain, is_host_network, kernel_hostname,
    pod_name, pod_namespace, pod_uid,
};
pub use paths::HostPaths;
pub(crate) use paths::is_plain_name;
pub use volumes::{SubPath, VolumeSpecError};
pub(crate) use volumes::{
    VolumeClaim, VolumeKind, find_volume, is_read_only, volume_claim, volume_host_path, volume_kind,
};
