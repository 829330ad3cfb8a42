//! Credentials: sent once if a server requests them, and never shown.

use super::*;

fn basic(password: &str) -> RegistryCredentials {
    RegistryCredentials::Basic { username: "u".into(), password: password.into() }
}

fn unauthorized(challenge: String) -> Reply {
    Reply::Content(StatusCode::UNAUTHORIZED, vec![("www-authenticate", challenge)], Bytes::new())
}

/// A registry with a token server under `/token`, which knows the password `geheim` and the refresh token `refresh`.
async fn token_registry(image: &TestImage) -> FakeRegistry {
    let routes = image.routes();
    FakeRegistry::start(move |got| {
        if let Some(query) = got.path.strip_prefix("/token") {
            assert!(query.contains("scope=repository:app:pull") || got.body.contains("scope=repository:app:pull"));
            let known =
                got.header("authorization") == "Basic dTpnZWhlaW0=" || got.body.contains("refresh_token=refresh");
            return if known { Reply::ok("{\"token\": \"t1\", \"expires_in\": 300}") } else { Reply::status(401) };
        }
        match got.header("authorization") {
            "Bearer t1" => serve_content(&routes, got),
            _ => unauthorized(format!("Bearer realm=\"http://{}/token\",service=\"s\"", got.header("host"))),
        }
    })
    .await
}

#[tokio::test]
async fn a_token_is_fetched_once_and_used_for_the_whole_repository() {
    let image = two_layers("app:1");
    let registry = token_registry(&image).await;
    let fixture = PullFixture::new();
    let reference = registry.reference("app:1");
    fixture.puller.pull(&reference, basic("geheim")).await.unwrap();
    fixture.puller.pull(&reference, basic("geheim")).await.unwrap();
    assert_eq!(registry.count("/token"), 1);
    // Others get no token from the cache.
    let error = fixture.pull(&reference).await.unwrap_err();
    assert_eq!(error.kind(), PullErrorKind::Unauthorized, "{}", error_chain(&error));
    let refresh = RegistryCredentials::IdentityToken("refresh".into());
    fixture.puller.pull(&reference, refresh).await.unwrap();
    let posted = registry.requests().into_iter().find(|got| got.method == "POST").unwrap();
    assert!(posted.body.contains("grant_type=refresh_token") && !posted.path.contains("refresh"), "{posted:?}");
    fixture.puller.pull(&reference, RegistryCredentials::RegistryToken("t1".into())).await.unwrap();
    assert_eq!(registry.count("/token"), 3);
}

#[tokio::test]
async fn a_wrong_password_is_tried_once_and_shown_nowhere() {
    let image = two_layers("app:1");
    let fixture = PullFixture::new();
    let registry = token_registry(&image).await;
    let error = fixture.puller.pull(&registry.reference("app:1"), basic("falsch")).await.unwrap_err();
    assert_eq!((error.kind(), registry.requests().len()), (PullErrorKind::Unauthorized, 2));
    let shown = format!("{} {error:?}", error_chain(&error));
    assert!(!shown.contains("falsch") && !shown.contains("dTpmYWxzY2g"), "{shown}");
    let registry = FakeRegistry::start(|_| unauthorized("Basic realm=\"r\"".into())).await;
    let error = fixture.puller.pull(&registry.reference("app:1"), basic("falsch")).await.unwrap_err();
    assert_eq!((error.kind(), registry.requests().len()), (PullErrorKind::Unauthorized, 2));
    let error = fixture.pull(&registry.reference("app:1")).await.unwrap_err();
    assert_eq!((error.kind(), registry.requests().len()), (PullErrorKind::Unauthorized, 3));
}

#[tokio::test]
async fn a_token_server_that_misbehaves_is_an_error_and_is_not_retried() {
    let fixture = PullFixture::new();
    let image = two_layers("app:1");
    let elsewhere = FakeRegistry::with(&[&image]).await;
    let rows: Vec<(String, &str)> = vec![
        ("file:///etc/shadow".into(), "token server is no URL"),
        ("nonsense".into(), "token server"),
        ("/token-hang".into(), "no data for"),
        ("/token-endless".into(), "the body has more than"),
        ("/token-empty".into(), "sent no token"),
        ("/token-garbage".into(), "is malformed"),
        ("/token-redirect".into(), "too many redirects"),
    ];
    for (realm, message) in rows {
        let to = format!("http://{}/steal", elsewhere.address);
        let registry = FakeRegistry::start(move |got| match got.path.split('?').next().unwrap() {
            "/token-hang" => Reply::Hang,
            "/token-endless" => Reply::Endless,
            "/token-empty" => Reply::ok("{}"),
            "/token-garbage" => Reply::ok("<html>"),
            "/token-redirect" => Reply::redirect(to.clone()),
            _ => {
                let own = if realm.starts_with('/') {
                    format!("http://{}{realm}", got.header("host"))
                } else {
                    realm.clone()
                };
                unauthorized(format!("Bearer realm=\"{own}\""))
            }
        })
        .await;
        let error = fixture.puller.pull(&registry.reference("app:1"), basic("geheim")).await.unwrap_err();
        assert!(error_chain(&error).contains(message), "{} lacks {message}", error_chain(&error));
    }
    assert_eq!(elsewhere.requests().len(), 0);
}

#[tokio::test]
async fn a_mirror_that_asks_for_the_registrys_password_does_not_get_it() {
    let image = two_layers("app:1");
    let upstream = FakeRegistry::with(&[&image]).await;
    let mirror = FakeRegistry::start(|_| unauthorized("Basic realm=\"r\"".into())).await;
    let config = tempfile::tempdir().unwrap();
    let dir = config.path().join(&upstream.address);
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("hosts.toml"), format!("[host.\"http://{}\"]\n", mirror.address)).unwrap();
    let fixture = PullFixture::with(ImageLimits::default(), Some(config.path().to_owned()));
    fixture.puller.pull(&upstream.reference("app:1"), basic("geheim")).await.unwrap();
    assert!(mirror.requests().len() >= 4);
    assert!(mirror.requests().iter().all(|got| got.header("authorization").is_empty()));
}
