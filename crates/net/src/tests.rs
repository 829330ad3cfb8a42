//! Tests on the real kernel. Each has a node of its own: a thread with its own network and mount namespaces, so that no link, rule or
//! mount of the host is touched. They need root.

mod builtin;
mod cni;
mod fixture;
mod measure;
mod recovery;
mod table;
