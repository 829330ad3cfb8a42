//! Real peers for tests and benches: containerd (Debian's and 2.x), a registry, a control plane, the Go kubelet, our own agent with a
//! runtime of these or with its own engine.
//!
//! Everything a test starts belongs to one [`Scratch`] with its own directory, cgroup root, bridge, subnet and log directories, so
//! that several can run concurrently. Dropping the scratch removes all of it; what a killed test run left behind is removed by
//! the next one.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use podwright_testbed::{Agent, Containerd, Flavor, Scratch};
//! let scratch = Scratch::new()?;
//! let containerd = Containerd::start(&scratch, Flavor::Debian16)?;
//! let agent = Agent::new(&scratch).runtime(&containerd).start()?;
//! # Ok(()) }
//! ```
//!
//! Programs come from the cache that `make debs` and `make peers` fill; programs installed on the host are neither used nor changed.

pub mod image;

mod agent;
mod agent_config;
mod api_client;
mod cache;
mod cni_config;
mod command;
mod containerd;
mod containerd_config;
mod control_plane;
mod critest_images;
mod docker_archive;
mod engine_bed;
mod engine_process;
mod host_settings;
mod host_state;
mod http;
mod hung_mount;
mod kubelet;
mod leftovers;
mod main_thread;
mod nat_tables;
mod network_state;
mod node_runtime;
mod process;
mod proxy;
mod registry;
mod scratch;
mod shared;
mod wait;

pub use agent::{Agent, AgentBuilder};
pub use agent_config::agent_config;
pub use api_client::{ApiWatch, TestApiClient};
pub use cache::Cache;
pub use cni_config::CniConfig;
pub use containerd::{Containerd, Flavor};
pub use control_plane::{BootstrapToken, Component, ControlPlane, TokenGroup};
pub use critest_images::CritestImages;
pub use engine_bed::EngineBed;
pub use engine_process::EngineProcess;
pub use http::{HttpResponse, free_port, get};
pub use hung_mount::HungMount;
pub use kubelet::GoKubelet;
pub use leftovers::leftovers;
pub use main_thread::run_on_main_thread;
pub use node_runtime::{NodeRuntime, TestRuntime};
pub use process::Process;
pub use proxy::{ProxiedRequest, Proxy, ProxyAction};
pub use registry::{PASSWORD, Registry, USER};
pub use scratch::Scratch;
pub use wait::wait_until;
