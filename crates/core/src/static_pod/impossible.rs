//! Values that an API server accepts, and that can never work: found in the document, so that other errors do not hide them.

use serde_json::Value;

use crate::validate::FieldError;

/// The message about such a value begins with this.
const NEVER_WORKS: &str = "this never works: ";

/// Probes of a port that the container does not name, and image names that no registry has.
pub(super) fn never_works(pod: &Value) -> Vec<FieldError> {
    let mut found = vec![];
    for list in ["initContainers", "containers"] {
        for (index, container) in pod["spec"][list].as_array().into_iter().flatten().enumerate() {
            let path = format!("spec.{list}[{index}]");
            probes(container, &path, &mut found);
            image(container, &path, &mut found);
        }
    }
    found
}

fn probes(container: &Value, path: &str, found: &mut Vec<FieldError>) {
    let ports = || container["ports"].as_array().into_iter().flatten().filter_map(|port| port["name"].as_str());
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        for action in ["httpGet", "tcpSocket"] {
            let Some(name) = container[probe][action]["port"].as_str() else { continue };
            // A number in quotes is accepted as one.
            if name.parse::<u16>().is_ok() || ports().any(|known| known == name) {
                continue;
            }
            let message = format!("{NEVER_WORKS}the container has no port of the name {name:?} in its ports");
            found.push(FieldError { path: format!("{path}.{probe}.{action}.port"), message });
        }
    }
}

fn image(container: &Value, path: &str, found: &mut Vec<FieldError>) {
    // Validation reports these two.
    let is_other = |image: &&str| !image.is_empty() && image.trim() == *image;
    let Some(image) = container["image"].as_str().filter(is_other) else { return };
    if !is_reference(image) {
        let message = format!(
            "{NEVER_WORKS}{image:?} is not a valid image name: it must look like registry/name:tag, in lower case"
        );
        found.push(FieldError { path: format!("{path}.image"), message });
    }
}

/// The grammar of image references, without the rules for separators inside a name.
fn is_reference(image: &str) -> bool {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let after_host = name.rfind('/').map_or(0, |at| at + 1);
    let (name, tag) = match name[after_host..].split_once(':') {
        Some((last, tag)) => (&name[..after_host + last.len()], Some(tag)),
        None => (name, None),
    };
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b));
    let part = |text: &str| plain(text) && !text.bytes().any(|b| b.is_ascii_uppercase());
    let host = |text: &str| text.split(':').all(plain) || text.starts_with('[');
    let mut parts = name.split('/').peekable();
    let first = parts.next().unwrap_or_default();
    let has_host = parts.peek().is_some() && (first.contains(['.', ':']) || first == "localhost");
    (if has_host { host(first) } else { part(first) })
        && parts.all(part)
        && tag.is_none_or(|tag| plain(tag) && tag.len() <= 128)
        && digest.is_none_or(|digest| digest.split_once(':').is_some_and(|(kind, hex)| plain(kind) && plain(hex)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn image_names_follow_the_grammar_of_registries() {
        for good in [
            "busybox",
            "busybox:1.36",
            "library/busybox",
            "localhost/podwright/busybox:1",
            "127.0.0.1:5000/a/b_c--d:V1.0",
            "Registry.example.com/a@sha256:0123abcd",
            "[::1]:5000/a",
        ] {
            assert!(is_reference(good), "{good}");
        }
        for bad in ["busy box:1", "Busybox", "a/B", "a:", "a//b", "/a", "a@sha256", "https://registry/a", "a:b:c"] {
            assert!(!is_reference(bad), "{bad}");
        }
    }

    #[test]
    fn a_probe_of_a_port_without_a_name_is_found() {
        let probe = json!({"httpGet": {"port": "http"}});
        let mut pod = json!({"spec": {"containers": [{"image": "i", "readinessProbe": probe}]}});
        let found = never_works(&pod);
        assert_eq!(found[0].path, "spec.containers[0].readinessProbe.httpGet.port");
        assert!(found.len() == 1 && found[0].message.contains("\"http\""), "{found:?}");
        pod["spec"]["containers"][0]["ports"] = json!([{"name": "http", "containerPort": 80}]);
        assert_eq!(never_works(&pod), []);
    }
}
