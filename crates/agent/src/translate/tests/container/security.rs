//! Users, groups, capabilities and profiles of a container, as sent to the runtime.

use super::*;

#[test]
fn the_containers_security_wins_over_the_pods() {
    let pod_context = json!({"securityContext": {"runAsUser": 5, "runAsGroup": 6, "fsGroup": 9, "supplementalGroups": [4],
        "seccompProfile": {"type": "RuntimeDefault"}, "appArmorProfile": {"type": "Unconfined"}}});
    let context = |container: Value, spec: Value| config_in(container, spec).linux.unwrap().security_context.unwrap();

    let from_pod = context(json!({}), pod_context.clone());
    assert_eq!((from_pod.run_as_user.unwrap().value, from_pod.run_as_group.unwrap().value), (5, 6));
    assert_eq!(from_pod.supplemental_groups, [9, 4]);
    assert_eq!(from_pod.seccomp.unwrap().profile_type, 0);
    assert_eq!(from_pod.apparmor.unwrap().profile_type, 1);
    #[allow(deprecated)]
    {
        assert_eq!(from_pod.apparmor_profile, "unconfined");
    }
    assert!(!from_pod.no_new_privs && !from_pod.privileged && !from_pod.readonly_rootfs);
    assert_eq!((from_pod.masked_paths.len(), from_pod.readonly_paths.len()), (12, 5));

    let own = context(
        json!({"securityContext": {"runAsUser": 7, "privileged": true, "readOnlyRootFilesystem": true,
            "allowPrivilegeEscalation": false, "procMount": "Unmasked",
            "capabilities": {"add": ["NET_ADMIN"], "drop": ["ALL"]},
            "seccompProfile": {"type": "Localhost", "localhostProfile": "profiles/strict.json"},
            "appArmorProfile": {"type": "Localhost", "localhostProfile": "strict"}}}),
        pod_context,
    );
    assert_eq!((own.run_as_user.unwrap().value, own.run_as_group.unwrap().value), (7, 6));
    assert!(own.privileged && own.readonly_rootfs && own.no_new_privs);
    assert!(own.masked_paths.is_empty() && own.readonly_paths.is_empty());
    let capabilities = own.capabilities.unwrap();
    assert_eq!(capabilities.add_capabilities, ["NET_ADMIN"]);
    assert_eq!(capabilities.drop_capabilities, ["ALL"]);
    let seccomp = own.seccomp.unwrap();
    assert_eq!(seccomp.localhost_ref, "/var/lib/podwright/seccomp/profiles/strict.json");
    assert_eq!(own.apparmor.unwrap().localhost_ref, "strict");
}

#[test]
fn an_unset_seccomp_profile_is_unconfined_or_the_default() {
    let seccomp = |settings: &NodeSettings| {
        let image = image();
        let ask = ContainerRequest {
            name: "web",
            attempt: 0,
            image: &image,
            ips: &[],
            target: None,
            references: &References::default(),
        };
        let pod = pod(json!({"containers": [{"name": "web"}]}));
        let config = container_config(&pod, &ask, settings, &Situation::default(), &TestHost).unwrap();
        config.linux.unwrap().security_context.unwrap().seccomp.unwrap().profile_type
    };
    assert_eq!(seccomp(&settings()), 1);
    assert_eq!(seccomp(&NodeSettings { seccomp_default: true, ..settings() }), 0);
    for file in ["/etc/passwd", "../up.json", ""] {
        let message =
            refused(json!({"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": file}}}));
        assert!(message.contains("localhostProfile"), "{file}: {message}");
    }
}

#[test]
fn the_images_user_runs_unless_the_pod_names_one() {
    let user = |image: ImageFacts| {
        let config = translate(json!({"containers": [{"name": "web"}]}), &image, &Situation::default()).unwrap();
        let context = config.linux.unwrap().security_context.unwrap();
        (context.run_as_user.map(|user| user.value), context.run_as_username)
    };
    let named = |uid, username: &str| ImageFacts { id: "i".into(), uid, username: username.into() };
    assert_eq!(user(named(Some(101), "")), (Some(101), String::new()));
    assert_eq!(user(named(None, "www")), (None, "www".into()));
    assert_eq!(user(named(None, "")), (Some(0), String::new()));
}

#[test]
fn run_as_non_root_is_checked_against_the_image() {
    let named = |uid, username: &str| ImageFacts { id: "i".into(), uid, username: username.into() };
    let table = [
        (json!({}), named(Some(0), ""), Some("container has runAsNonRoot and image will run as root (pod:")),
        (json!({}), named(None, ""), Some("image will run as root")),
        (json!({}), named(None, "www"), Some("non-numeric user (www), cannot verify user is non-root")),
        (json!({}), named(Some(-5), ""), Some("invalid user id (-5)")),
        (json!({}), named(Some(101), ""), None),
        (json!({"runAsUser": 0}), named(Some(101), ""), Some("runAsUser breaks non-root policy")),
        (json!({"runAsUser": 7}), named(Some(0), ""), None),
        (json!({"runAsNonRoot": false}), named(Some(0), ""), None),
    ];
    for (context, image, expected) in table {
        let spec = json!({"securityContext": {"runAsNonRoot": true},
            "containers": [{"name": "web", "securityContext": context}]});
        let result = translate(spec, &image, &Situation::default());
        match expected {
            Some(text) => {
                let error = result.expect_err("is refused");
                assert_eq!(error.reason(), "CreateContainerConfigError");
                assert!(error.message().contains(text), "{context} {image:?}: {}", error.message());
                assert!(error.message().contains("\"shop_default(u-1)\", container: web"), "{}", error.message());
            }
            None => assert!(result.is_ok(), "{context} {image:?}"),
        }
    }
}
