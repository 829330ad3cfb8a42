//! Any bytes that come as a manifest give pods or an error, never a panic, up to the configuration for the runtime.

use jiff::Timestamp;
use podwright_agent::sources::documents;
use podwright_agent::translate::{NodeSettings, Situation, sandbox_config};
use podwright_core::admission::{Ledger, admit};
use podwright_core::model::{Out, Source};
use podwright_core::{Node, NodeConfig, hash, qos, static_pod};

const GOOD: [&str; 3] = [
    "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {a: b}}\nspec:\n  terminationGracePeriodSeconds: 5\n  hostAliases: [{ip: 10.0.0.1, hostnames: [x]}]\n  containers:\n  - name: c\n    image: localhost/x:1\n    ports: [{containerPort: 80, hostPort: 8080}]\n    resources: {limits: {cpu: 200m, memory: 32Mi}}\n    livenessProbe: {httpGet: {port: 80, path: /}, periodSeconds: 1}\n",
    "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"j\",\"uid\":\"abc\"},\"spec\":{\"initContainers\":[{\"name\":\"i\",\"image\":\"a\",\"restartPolicy\":\"Always\"}],\"containers\":[{\"name\":\"c\",\"image\":\"b\",\"env\":[{\"name\":\"A\",\"valueFrom\":{\"fieldRef\":{\"fieldPath\":\"status.podIP\"}}}],\"volumeMounts\":[{\"name\":\"v\",\"mountPath\":\"/v\",\"subPath\":\"s\"}]}],\"volumes\":[{\"name\":\"v\",\"emptyDir\":{\"medium\":\"Memory\",\"sizeLimit\":\"1Mi\"}}]}}",
    "kind: List\napiVersion: v1\nitems:\n- {apiVersion: v1, kind: Pod, metadata: {name: one}, spec: {containers: [{name: c, image: i, securityContext: {runAsUser: 1, capabilities: {add: [NET_ADMIN]}}}]}}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: two}\nspec: {hostNetwork: true, containers: [{name: c, image: i}]}\n",
];

struct Chance(u64);

impl Chance {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap_or(0) % n.max(1)
    }
}

/// Flips bits, cuts and duplicates parts, and inserts unusual text.
fn mutilate(text: &str, chance: &mut Chance) -> Vec<u8> {
    const WORDS: [&str; 12] = [
        "-1",
        "0x7fffffffffffffff",
        "null",
        "{",
        "[",
        "\u{202e}",
        "../../..",
        "1e999",
        "!!binary",
        "&a *a",
        "99999999999999999999",
        "\0",
    ];
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=chance.below(4) {
        let at = chance.below(bytes.len());
        match chance.below(5) {
            0 => bytes[at] ^= 1 << chance.below(8),
            1 => bytes.truncate(at.max(1)),
            2 => {
                let end = (at + chance.below(40)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            3 => drop(bytes.remove(at)),
            _ => drop(bytes.splice(at..at, WORDS[chance.below(WORDS.len())].bytes())),
        }
        if bytes.is_empty() {
            bytes.push(b'x');
        }
    }
    bytes
}

#[test]
fn mutilated_manifests_give_pods_or_an_error() {
    let (mut pods, mut errors) = (0, 0);
    for seed in 0..6_000 {
        let mut chance = Chance(seed);
        let bytes = mutilate(GOOD[chance.below(GOOD.len())], &mut chance);
        let Ok(values) = documents(&bytes) else {
            errors += 1;
            continue;
        };
        for value in values {
            static_pod::unknown_in(&value);
            let Ok(manifests) = static_pod::from_value(value, Source::File, "f.yaml", "node", Timestamp::UNIX_EPOCH)
            else {
                errors += 1;
                continue;
            };
            for manifest in manifests {
                pods += 1;
                let pod = &manifest.pod;
                let _ = admit(pod, &Ledger::default(), &NodeConfig::default());
                qos::pod_cgroup(pod, None);
                for container in &pod.spec.as_ref().expect("it has one").containers {
                    hash::container_hash(container);
                    qos::oom_score_adj(pod, container, 1 << 34);
                }
                let _ = sandbox_config(pod, 0, &NodeSettings::default(), &Situation::default());
                let mut node = Node::new(NodeConfig::default(), vec![]);
                let set = podwright_core::model::SourceChange::Set { pods: vec![manifest], broken: vec![] };
                let now = podwright_core::model::Now { boot: std::time::Duration::ZERO, wall: Timestamp::UNIX_EPOCH };
                let event = podwright_core::model::Event::Source { source: Source::File, change: set };
                node.handle(event, now, &mut Out::default());
            }
        }
    }
    // Both outcomes must occur for the test to be meaningful.
    assert!(pods > 300 && errors > 300, "{pods} pods, {errors} errors");
}
