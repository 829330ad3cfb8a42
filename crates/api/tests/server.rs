//! Everything that speaks to an API server, against one that can be made to do anything.

#[path = "server/fake.rs"]
mod fake;
#[path = "server/node.rs"]
mod node;
#[path = "server/pod_objects.rs"]
mod pod_objects;
#[path = "server/pods.rs"]
mod pods;
