//! Compares the list with the type and the document.

use serde_json::json;

use super::*;
use crate::model::Pod;

#[test]
fn every_field_of_the_type_has_a_row_and_every_row_a_field() {
    let fields = walk::fields_of::<Pod>();
    assert!(fields.len() > 1000, "{}", fields.len());
    for Field { path, .. } in FIELDS {
        assert!(fields.contains(*path), "{path} is no field of a pod");
        assert_eq!(FIELDS.iter().filter(|f| f.path == *path).count(), 1, "{path} is listed twice");
    }
    for path in &fields {
        if row(path).is_some() {
            continue;
        }
        let parent = path.rfind('.').map_or("", |dot| path[..dot].trim_end_matches("[]"));
        let nearest = support(parent).unwrap_or(Support::Parts);
        assert_ne!(nearest, Support::Parts, "{path} has no row");
    }
}

/// Where the document is; the test runs in the crate's directory.
const DOCUMENT: &str = "../../docs/FIELDS.md";

#[test]
#[expect(clippy::disallowed_methods, reason = "the document is a file")]
fn the_document_is_generated_from_the_list() {
    if std::env::var_os("PODWRIGHT_BLESS").is_some() {
        std::fs::write(DOCUMENT, markdown()).unwrap();
    }
    let written = std::fs::read_to_string(DOCUMENT).unwrap_or_default();
    assert!(written == markdown(), "docs/FIELDS.md is outdated: PODWRIGHT_BLESS=1 cargo test -p podwright-core fields");
}

#[test]
fn unsupported_fields_are_found_at_any_path() {
    let document = json!({
        "metadata": {"name": "a", "labels": {"image": "csi", "spec.volumes": "x"}, "generateName": ""},
        "spec": {
            "schedulerName": "other",
            "volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "nfs": {"server": "s", "path": "/"}}],
            "initContainers": [{"name": "i", "resizePolicy": [{"resourceName": "cpu"}], "volumeDevices": []}],
            "containers": [{"name": "c", "resources": {"limits": {"cpu": "1", "ephemeral-storage": "1Gi"},
                "requests": {"ephemeral-storage": "1Gi"}}, "livenessProbe": {"grpc": {"port": 1, "mode": "x"}}}],
        },
        "status": {"phase": "Running"},
    });
    let mut found: Vec<String> = unsupported(&document, 100).into_iter().map(|(path, _)| path).collect();
    found.sort();
    assert_eq!(
        found,
        ["spec.containers[0].livenessProbe.grpc.mode", "spec.initContainers[0].resizePolicy", "spec.volumes[1].nfs"]
    );
}

#[test]
fn the_nearest_row_decides() {
    assert_eq!(support("spec.volumes[3].hostPath.type"), Some(Support::Yes("")));
    assert!(matches!(support("spec.initContainers[0].stdin"), Some(Support::Yes(_))));
    assert!(matches!(support("spec.volumes[0].nfs.server"), Some(Support::Not(_))));
    assert_eq!(support("nonsense"), None);
    let beside: Vec<_> = siblings("spec.initContainers[2].imagePolicy").collect();
    assert!(beside.contains(&"imagePullPolicy") && !beside.contains(&"hostNetwork"), "{beside:?}");
}
