//! A node of a real cluster: pods come from a kube-apiserver, run on containerd 2.x, and are told of there.

#[expect(dead_code, reason = "of the suite only its containers are used here")]
mod suite;

#[path = "cluster/deletion.rs"]
mod deletion;
#[path = "cluster/joined.rs"]
mod joined;
#[path = "cluster/kills.rs"]
mod kills;
#[path = "cluster/kubectl.rs"]
mod kubectl;
#[path = "cluster/objects.rs"]
mod objects;
#[path = "cluster/outage.rs"]
mod outage;
#[path = "cluster/secrets.rs"]
mod secrets;
#[path = "cluster/workloads.rs"]
mod workloads;
