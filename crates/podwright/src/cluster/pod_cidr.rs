//! The pod CIDRs of the Node object, for the network of the runtime.

use std::time::Duration;

use podwright_api::node::RegisteredNode;
use podwright_cri::{Code, CriError, v1};
use tokio::sync::watch;

/// Passes them to the runtime once, and again when they change (Go kubelet: `updatePodCIDR`). What the runtime refuses is sent again:
/// it may have pods with addresses of another range. Ends with the sender of the object.
pub(super) async fn follow<F>(
    mut object: watch::Receiver<Option<RegisteredNode>>,
    update: impl Fn(v1::RuntimeConfig) -> F + Send,
) where
    F: Future<Output = Result<(), CriError>> + Send,
{
    let mut accepted = String::new();
    let mut last_error = String::new();
    loop {
        let node = object.borrow_and_update().clone();
        let asked = node.map(|node| node.pod_cidrs.join(",")).unwrap_or_default();
        let is_new = !asked.is_empty() && asked != accepted;
        let mut retry = is_new;
        if is_new {
            let network_config = Some(v1::NetworkConfig { pod_cidr: asked.clone() });
            match update(v1::RuntimeConfig { network_config }).await {
                Err(error) if error.code != Code::Unimplemented => {
                    let text = error.to_string();
                    if text != last_error {
                        tracing::warn!(
                            pod_cidr = asked,
                            error = text,
                            "the runtime does not use the pod CIDR of the node yet"
                        );
                    }
                    last_error = text;
                }
                _ => {
                    tracing::info!(pod_cidr = asked, "pod CIDR of the node passed to the runtime");
                    (accepted, retry) = (asked, false);
                }
            }
        }
        tokio::select! {
            changed = object.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(RETRY), if retry => {}
        }
    }
}

/// The kubelet's `nodeStatusUpdateFrequency`, in which it tries again.
const RETRY: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::future::ready;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pod_cidrs_are_sent_until_the_runtime_takes_them_and_again_when_they_change() {
        let (node, object) = watch::channel(None);
        let sent: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&sent);
        let update = move |config: v1::RuntimeConfig| {
            let mut sent = log.lock().unwrap();
            sent.push(config.network_config.unwrap().pod_cidr);
            ready(match sent.len() {
                1 => Err(CriError::new(Code::Other, "UpdateRuntimeConfig", "3 pods have addresses")),
                _ => Ok(()),
            })
        };
        let followed = tokio::spawn(follow(object, update));
        let of_node = |cidrs: &[&str]| {
            let pod_cidrs = cidrs.iter().map(|text| (*text).to_owned()).collect();
            Some(RegisteredNode { pod_cidrs, ..RegisteredNode::default() })
        };
        let steps: [(&[&str], &[&str]); 4] = [
            (&[], &[]),
            (&["10.1.0.0/24"], &["10.1.0.0/24", "10.1.0.0/24"]),
            (&["10.1.0.0/24"], &["10.1.0.0/24", "10.1.0.0/24"]),
            (&["10.1.0.0/24", "fd00::/64"], &["10.1.0.0/24", "10.1.0.0/24", "10.1.0.0/24,fd00::/64"]),
        ];
        for (cidrs, expected) in steps {
            node.send_replace(of_node(cidrs));
            tokio::time::sleep(RETRY * 3).await;
            assert_eq!(*sent.lock().unwrap(), expected);
        }
        drop(node);
        followed.await.unwrap();
    }
}
