//! Tables of documents, good and bad.

use serde_json::{Value, json};

use super::*;

fn digest(n: u8) -> Digest {
    Digest::of(&[n])
}

fn parse(value: &Value, media_type: &str) -> Result<ManifestDocument, ImageManifestError> {
    ManifestDocument::parse(value.to_string().as_bytes(), media_type, &ImageLimits::default())
}

fn manifest() -> Value {
    json!({
        "schemaVersion": 2, "mediaType": OCI_MANIFEST,
        "config": {"mediaType": OCI_CONFIG, "digest": digest(0), "size": 7},
        "layers": [{"mediaType": OCI_LAYER, "digest": digest(1), "size": 9}],
    })
}

fn entry(n: u8, platform: &str) -> Value {
    let mut parts = platform.split('/');
    let (os, architecture, variant) = (parts.next(), parts.next(), parts.next());
    json!({"digest": digest(n), "size": 1, "platform": {"os": os, "architecture": architecture, "variant": variant}})
}

#[test]
fn a_manifest_is_read_in_both_forms() {
    let ManifestDocument::Manifest(read) = parse(&manifest(), "").unwrap() else { panic!("no manifest") };
    assert_eq!((read.config.digest, read.layers[0].digest), (digest(0), digest(1)));
    let docker = json!({
        "schemaVersion": 2,
        "config": {"mediaType": DOCKER_CONFIG, "digest": digest(0), "size": 7},
        "layers": [{"mediaType": LAYER_TYPES[4], "digest": digest(1), "size": 9}],
    });
    assert!(matches!(parse(&docker, DOCKER_MANIFEST), Ok(ManifestDocument::Manifest(_))));
    assert!(matches!(parse(&manifest(), OCI_MANIFEST), Ok(ManifestDocument::Manifest(_))));
    let signed = "application/vnd.docker.distribution.manifest.v1+prettyjws";
    assert!(matches!(parse(&json!({}), signed), Err(ImageManifestError::SchemaOne)));
    // A manifest of ours, as it is stored.
    assert_eq!(
        ManifestDocument::parse(&read.to_json(), "", &ImageLimits::default()).unwrap(),
        ManifestDocument::Manifest(read)
    );
}

#[test]
fn bad_manifests_are_refused_and_the_error_names_the_field() {
    let edited = |edit: fn(&mut Value)| {
        let mut value = manifest();
        edit(&mut value);
        value
    };
    let rows = [
        (json!([]), "is not an image manifest"),
        (json!("text"), "manifest is malformed"),
        (json!({"schemaVersion": 1, "fsLayers": []}), "schema 1"),
        (edited(|m| m["manifests"] = json!([])), "is not an image manifest"),
        (edited(|m| m["mediaType"] = json!(OCI_INDEX)), "is not an image manifest"),
        (edited(|m| m["mediaType"] = json!("text/html")), "\"text/html\" is not an image manifest"),
        (edited(|m| m["config"]["digest"] = json!("sha256:../../etc/passwd")), "manifest is malformed"),
        (edited(|m| m["config"]["size"] = json!(-1)), "manifest is malformed"),
        (edited(|m| m["config"]["size"] = json!(9_u64 << 20)), "image configuration has 9437184 bytes"),
        (edited(|m| m["config"]["mediaType"] = json!("application/vnd.cncf.helm.config.v1+json")), "an artifact"),
        (edited(|m| m["layers"][0]["size"] = json!(60_u64 << 30)), "bytes, more than"),
        (edited(|m| m["layers"][0]["mediaType"] = json!("application/vnd.in-toto+json")), "unsupported media type"),
        (
            edited(|m| {
                m["layers"][0]["mediaType"] = json!("application/vnd.docker.image.rootfs.foreign.diff.tar.gzip")
            }),
            "foreign layer",
        ),
        (edited(|m| m["layers"] = vec![m["layers"][0].clone(); 257].into()), "257 layers, more than 256"),
    ];
    for (value, message) in rows {
        let error = parse(&value, "").unwrap_err().to_string();
        assert!(error.contains(message), "{error:?} lacks {message:?}");
    }
    let large = vec![b' '; (4 << 20) + 1];
    let error = ManifestDocument::parse(&large, "", &ImageLimits::default()).unwrap_err();
    assert!(matches!(error, ImageManifestError::TooLarge { what: "manifest", .. }));
}

#[test]
fn the_index_entry_of_the_host_is_chosen() {
    let index = json!({"schemaVersion": 2, "manifests": [
        entry(1, "linux/arm/v6"), entry(2, "linux/arm/v7"), entry(3, "linux/amd64"), entry(4, "unknown/unknown"),
        entry(5, "linux/amd64"),
    ]});
    let ManifestDocument::Index(index) = parse(&index, OCI_INDEX).unwrap() else { panic!("no index") };
    let chosen = |os: &str, architecture: &str, variant: Option<&str>| {
        let variant = variant.map(str::to_owned);
        index.choose(&Platform { os: os.into(), architecture: architecture.into(), variant }).map(|d| d.digest)
    };
    assert_eq!(chosen("linux", "amd64", None).unwrap(), digest(3));
    assert_eq!(chosen("linux", "arm", Some("v7")).unwrap(), digest(2));
    assert_eq!(chosen("linux", "arm", Some("v6")).unwrap(), digest(1));
    let error = chosen("linux", "s390x", None).unwrap_err().to_string();
    let text = "no image for platform linux/s390x; there are linux/arm/v6, linux/arm/v7, linux/amd64";
    assert!(error.starts_with(text), "{error}");
}

#[test]
fn a_configuration_must_fit_manifest_and_host() {
    let ManifestDocument::Manifest(manifest) = parse(&manifest(), "").unwrap() else { panic!("no manifest") };
    let read = |value: Value| ImageConfiguration::parse(value.to_string().as_bytes(), &ImageLimits::default());
    let host = Platform { os: "linux".into(), architecture: "amd64".into(), variant: None };
    let good = read(json!({
        "os": "linux", "architecture": "amd64", "config": {"Env": null, "Cmd": ["sh"], "Labels": null, "Volumes": {"/v": {}}},
        "rootfs": {"type": "layers", "diff_ids": [digest(3)]},
    }))
    .unwrap();
    assert_eq!(good.config.cmd, ["sh"]);
    assert!(good.check(&manifest, &host).is_ok());
    let other =
        ImageConfiguration { platform: Platform { architecture: "arm64".into(), ..host.clone() }, ..good.clone() };
    let error = other.check(&manifest, &host).unwrap_err().to_string();
    assert_eq!(error, "no image for platform linux/amd64; there are linux/arm64");
    let fewer = ImageConfiguration { rootfs: RootFs::default(), ..good };
    assert!(matches!(fewer.check(&manifest, &host), Err(ImageManifestError::DiffIdCount { layers: 1, diff_ids: 0 })));
    assert!(read(json!({"os": "linux"})).is_err(), "rootfs is missing");
}

#[test]
fn a_large_configuration_is_read_in_little_memory() {
    let parse = |config: Value| {
        let text =
            json!({"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": []}, "config": config}).to_string();
        ImageConfiguration::parse(text.as_bytes(), &ImageLimits::default())
    };
    let most = parse(json!({"Env": vec![""; 10_000], "Volumes": {"/data": {"x": [[], []]}}, "Cmd": null})).unwrap();
    assert_eq!((most.config.env.len(), most.config.volumes.len(), most.config.cmd.len()), (10_000, 1, 0));
    let map: serde_json::Map<String, Value> = (0..10_001).map(|n| (n.to_string(), json!(""))).collect();
    for too_many in [json!({"Env": vec![""; 10_001]}), json!({"Labels": map}), json!({"Volumes": map})] {
        let error = parse(too_many).unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.starts_with("more than 10000 entries"), "{source}");
    }
}
