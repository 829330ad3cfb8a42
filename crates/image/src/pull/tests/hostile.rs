//! Registries that hang, lie, redirect and never end: the pull fails in time, and nothing becomes visible.

use super::*;

/// A registry that serves the image except for what `bad` answers.
async fn registry_with(image: &TestImage, bad: impl Fn(&Got) -> Option<Reply> + Send + Sync + 'static) -> FakeRegistry {
    let routes = image.routes();
    FakeRegistry::start(move |got| bad(got).unwrap_or_else(|| serve_content(&routes, got))).await
}

#[tokio::test]
async fn a_registry_that_hangs_or_stalls_is_given_up() {
    let image = two_layers("app:1");
    let (layer, length) = (image.layers[0].to_string(), image.blobs[&image.layers[0]].len() as u64);
    let fixture = PullFixture::new();
    let registry = registry_with(&image, |_| Some(Reply::Hang)).await;
    let kind = fixture.refuses(&registry.reference("app:1"), "no data for 0.5 s").await;
    assert_eq!(kind, PullErrorKind::Unavailable);
    let blob = layer.clone();
    let registry = registry_with(&image, move |got| got.path.contains(&blob).then_some(Reply::Hang)).await;
    fixture.refuses(&registry.reference("app:1"), "no data for 0.5 s").await;
    let blob = layer.clone();
    let stall = move |got: &Got| got.path.contains(&blob).then(|| Reply::Stall(Bytes::from_static(b"x"), length));
    let registry = registry_with(&image, stall).await;
    fixture.refuses(&registry.reference("app:1"), "no data for 0.5 s").await;
    let registry = registry_with(&image, move |got| got.path.contains(&layer).then_some(Reply::Trickle(20))).await;
    fixture.refuses(&registry.reference("app:1"), "no data for 0.5 s").await;
    let registry = registry_with(&image, |got| got.path.contains("manifests").then_some(Reply::Trickle(20))).await;
    fixture.refuses(&registry.reference("app:1"), "no data for 0.5 s").await;
}

#[tokio::test]
async fn a_registry_that_cannot_be_reached_or_lacks_the_image_is_named() {
    let image = two_layers("app:1");
    let (fixture, registry) = (PullFixture::new(), FakeRegistry::with(&[&image]).await);
    let kind = fixture.refuses(&registry.reference("app:2"), "manifests/2: status 404").await;
    assert_eq!(kind, PullErrorKind::NotFound);
    let closed = "127.0.0.1:1/app:1".parse().unwrap();
    let kind = fixture.refuses(&closed, "http://127.0.0.1:1/v2/app/manifests/1").await;
    assert_eq!(kind, PullErrorKind::Unavailable);
    let unknown = "registry.invalid/app:1".parse().unwrap();
    assert_eq!(
        fixture.refuses(&unknown, "https://registry.invalid/v2/app/manifests/1").await,
        PullErrorKind::Unavailable
    );
}

#[tokio::test]
async fn wrong_digests_and_sizes_of_blobs_are_refused() {
    let image = two_layers("app:1");
    let (layer, length) = (image.layers[0].to_string(), image.blobs[&image.layers[0]].len());
    let fixture = PullFixture::new();
    type MakeReply = fn(usize) -> Reply;
    let rows: [(MakeReply, &str); 5] = [
        (|length| Reply::ok(vec![7; length]), "the content has digest"),
        (|length| Reply::ok(vec![7; length + 1]), "the manifest says"),
        (|length| Reply::ok(vec![7; length - 1]), "the manifest says"),
        (|_| Reply::Endless, "the body has more than"),
        (|_| Reply::Cut(StatusCode::OK, vec![], Bytes::from_static(b"part")), "blobs/"),
    ];
    for (reply, message) in rows {
        let layer = layer.clone();
        let registry = registry_with(&image, move |got| got.path.contains(&layer).then(|| reply(length))).await;
        fixture.refuses(&registry.reference("app:1"), message).await;
    }
    let kind = {
        let registry = registry_with(&image, move |got| got.path.contains(&layer).then(|| Reply::status(500))).await;
        fixture.refuses(&registry.reference("app:1"), "status 500").await
    };
    assert_eq!(kind, PullErrorKind::Unavailable);
}

#[tokio::test]
async fn a_layer_that_is_not_what_the_configuration_says_never_becomes_visible() {
    let host = Platform::host();
    let image = TestImage::with_config(
        "app:1",
        &[TestLayer::new().file("a", "1")],
        |_| json!({"os": host.os, "architecture": host.architecture, "rootfs": {"diff_ids": [Digest::of(b"other")]}}),
    );
    let (fixture, registry) = (PullFixture::new(), FakeRegistry::with(&[&image]).await);
    assert_eq!(fixture.refuses(&registry.reference("app:1"), "rootfs.diff_ids").await, PullErrorKind::Invalid);
    // The same for an entry that leads out.
    let image = TestImage::new("app:1", &[TestLayer::new().file("ok", ""), TestLayer::new().file("../../x", "1")]);
    let registry = FakeRegistry::with(&[&image]).await;
    let error = fixture.pull(&registry.reference("app:1")).await.unwrap_err();
    assert!(error_chain(&error).contains("has a .. in it"), "{error:?}");
    assert_eq!((error.kind(), fixture.store.images().len()), (PullErrorKind::Invalid, 0));
}

#[tokio::test]
async fn manifests_that_lie_or_never_end_are_refused() {
    let image = two_layers("app:1");
    let fixture = PullFixture::new();
    let registry = registry_with(&image, |got| got.path.contains("manifests").then_some(Reply::Endless)).await;
    fixture.refuses(&registry.reference("app:1"), "the body has more than 4194304 bytes").await;
    let manifest = image.manifest.clone();
    let lies = move |got: &Got| {
        let header = ("docker-content-digest", Digest::of(b"other").to_string());
        got.path.contains("manifests").then(|| Reply::Content(StatusCode::OK, vec![header], manifest.clone()))
    };
    let registry = registry_with(&image, lies).await;
    fixture.refuses(&registry.reference("app:1"), "instead of").await;
    // By digest: the content must be that one.
    let registry = registry_with(&image, |got| got.path.contains("manifests").then(|| Reply::ok("{}"))).await;
    let wanted = registry.reference("app:1").with_digest(image.manifest_digest());
    fixture.refuses(&wanted, "the content has digest").await;
    let registry = registry_with(&image, |got| got.path.contains("manifests").then(|| Reply::ok("<html>"))).await;
    fixture.refuses(&registry.reference("app:1"), "manifest is malformed").await;
}

#[tokio::test]
async fn indexes_in_a_loop_end_at_the_bound() {
    let fixture = PullFixture::new();
    let platform = json!(Platform::host());
    let mut routes: BTreeMap<String, (String, Bytes)> = BTreeMap::new();
    let mut below = Digest::of(b"nothing");
    for _ in 0..10 {
        let entry = json!({"mediaType": OCI_INDEX, "digest": below, "size": 9, "platform": platform});
        let index: Bytes = json!({"schemaVersion": 2, "manifests": [entry]}).to_string().into();
        below = Digest::of(&index);
        routes.insert(format!("/v2/app/manifests/{below}"), (OCI_INDEX.into(), index.clone()));
        routes.insert("/v2/app/manifests/1".into(), (OCI_INDEX.into(), index));
    }
    let registry = FakeRegistry::start(move |got| serve_content(&routes, got)).await;
    let kind = fixture.refuses(&registry.reference("app:1"), "nested deeper than 2").await;
    assert_eq!((kind, registry.requests().len()), (PullErrorKind::Invalid, 3));
    // An index that names itself would need its own digest inside; a registry that pretends is caught by the digest.
    let own = json!({"schemaVersion": 2, "manifests": [{"digest": Digest::of(b"x"), "size": 9, "platform": platform}]});
    let registry = FakeRegistry::start(move |_| Reply::ok(own.to_string())).await;
    fixture.refuses(&registry.reference("app:1"), "the content has digest").await;
}

#[tokio::test]
async fn an_image_for_another_platform_is_refused_with_both_names() {
    let image = TestImage::with_config(
        "app:1",
        &[TestLayer::new()],
        |diff_ids| json!({"os": "linux", "architecture": "s390x", "rootfs": {"diff_ids": diff_ids}}),
    );
    let (fixture, registry) = (PullFixture::new(), FakeRegistry::with(&[&image]).await);
    let message = format!("no image for platform {}; there are linux/s390x", Platform::host());
    assert_eq!(fixture.refuses(&registry.reference("app:1"), &message).await, PullErrorKind::Invalid);
}

#[tokio::test]
async fn redirects_to_files_and_without_end_are_refused() {
    let image = two_layers("app:1");
    let (fixture, layer) = (PullFixture::new(), image.layers[0].to_string());
    for location in ["file:///etc/shadow", "file://localhost/etc/shadow", "ftp://127.0.0.1/x"] {
        let blob = layer.clone();
        let registry =
            registry_with(&image, move |got| got.path.contains(&blob).then(|| Reply::redirect(location))).await;
        fixture.refuses(&registry.reference("app:1"), "refused: ").await;
    }
    let registry = registry_with(&image, |got| Some(Reply::redirect(format!("{}x", got.path)))).await;
    fixture.refuses(&registry.reference("app:1"), "too many redirects").await;
    assert!(registry.requests().len() <= 12, "{}", registry.requests().len());
}

#[tokio::test]
async fn a_redirect_to_another_host_carries_no_credentials() {
    let image = two_layers("app:1");
    let storage = FakeRegistry::with(&[&image]).await;
    let address = storage.address.clone();
    let redirect = move |got: &Got| match got.path.contains("blobs") {
        _ if got.header("authorization").is_empty() => Some(Reply::Content(
            StatusCode::UNAUTHORIZED,
            vec![("www-authenticate", "Basic realm=\"r\"".into())],
            Bytes::new(),
        )),
        true => Some(Reply::redirect(format!("http://{address}{}", got.path))),
        false => None,
    };
    let registry = registry_with(&image, redirect).await;
    let fixture = PullFixture::new();
    let credentials = RegistryCredentials::Basic { username: "u".into(), password: "geheim".into() };
    fixture.puller.pull(&registry.reference("app:1"), credentials).await.unwrap();
    assert_eq!(storage.requests().len(), 3);
    assert!(storage.requests().iter().all(|got| got.header("authorization").is_empty()));
}

#[tokio::test]
async fn a_full_disk_ends_the_pull_and_leaves_the_space_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let mounted = crate::tests::Mounted::small_disk(dir.path(), 4 << 20);
    // Hex of digests does not compress, and the layer alone is larger than the disk.
    let noise: String = (0..150_000_u32).map(|n| Digest::of(&n.to_le_bytes()).hex()).collect();
    let large = TestImage::new("large:1", &[TestLayer::new().file("f", &noise)]);
    let zeros = TestImage::new("zeros:1", &[TestLayer::new().file("f", &"\0".repeat(30 << 20))]);
    let small = two_layers("small:1");
    let registry = FakeRegistry::with(&[&large, &zeros, &small]).await;
    let store = ImageStore::open(&dir.path().join("engine"), ImageLimits::default(), Platform::host()).unwrap();
    let puller = Puller::new(Arc::clone(&store), RegistryOptions::default(), Pool::default()).unwrap();
    let puller = puller.collecting_garbage(GcRoots::default);
    for name in ["large:1", "zeros:1"] {
        let error = puller.pull(&registry.reference(name), RegistryCredentials::Anonymous).await.unwrap_err();
        assert_eq!(error.kind(), PullErrorKind::NoSpace, "{}", error_chain(&error));
        assert!(error_chain(&error).contains("no space left for images on the disk of"), "{}", error_chain(&error));
        assert_eq!(store.usage().unwrap(), crate::store::StoreUsage::default());
    }
    puller.pull(&registry.reference("small:1"), RegistryCredentials::Anonymous).await.unwrap();
    drop((puller, store, mounted));
}

#[tokio::test]
async fn a_registry_that_stalls_does_not_delay_another_with_the_same_layer() {
    let image = two_layers("app:1");
    let (layer, length) = (image.layers[0].to_string(), image.blobs[&image.layers[0]].len() as u64);
    let stall = move |got: &Got| got.path.contains(&layer).then(|| Reply::Stall(Bytes::from_static(b"x"), length));
    let (slow, fast) = (registry_with(&image, stall).await, FakeRegistry::with(&[&image]).await);
    let fixture = PullFixture::new();
    let (stuck, puller) = (slow.reference("app:1"), Arc::clone(&fixture.puller));
    let stuck = tokio::spawn(async move { puller.pull(&stuck, RegistryCredentials::Anonymous).await.is_err() });
    while slow.count("blobs/") < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    fixture.pull(&fast.reference("app:1")).await.unwrap();
    assert!(!stuck.is_finished(), "the stalled transfer is still waited for");
    stuck.abort();
}

/// Of an image that names the layers of another one in its configuration, and has a blob that takes long to unpack.
#[tokio::test]
async fn a_blob_that_claims_a_layer_of_another_image_does_not_delay_it() {
    let image = two_layers("team/app:1");
    let registry = FakeRegistry::with(&[&image]).await;
    let reference = registry.reference("team/app:1");
    let layers = PullFixture::new().pull(&reference).await.unwrap().layers;
    let fixture = PullFixture::new();
    let claimed = (chain_of(&layers)[0], Digest::of(b"another blob"));
    let _unpacking = fixture.puller.flights.layers.lock(claimed).await;
    fixture.pull(&reference).await.unwrap();
}
