//! All API clients of this crate against a scripted API server.

#[path = "server/certificates.rs"]
mod certificates;
#[path = "server/fake.rs"]
mod fake;
#[path = "server/node.rs"]
mod node;
#[path = "server/pod_objects.rs"]
mod pod_objects;
#[path = "server/pods.rs"]
mod pods;
