//! Pulls from Debian's docker-registry, with and without credentials, and archives of real tools.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use podwright_image::{
    GcRoots, ImageLimits, ImageReference, ImageStore, Platform, PullErrorKind, Puller, RegistryCredentials,
    RegistryOptions,
};
use podwright_tasks::Pool;
use podwright_testbed::{PASSWORD, Registry, Scratch, USER, image};

fn store(scratch: &Scratch, name: &str) -> Result<Arc<ImageStore>> {
    Ok(ImageStore::open(&scratch.dir(name)?, ImageLimits::default(), Platform::host())?)
}

fn reference(registry: &Registry) -> Result<ImageReference> {
    Ok(format!("{}/podwright/busybox:1", registry.address()).parse()?)
}

#[tokio::test]
async fn a_real_registry_serves_an_image_that_can_be_used() -> Result<()> {
    let scratch = Scratch::new()?;
    let registry = Registry::start(&scratch)?;
    registry.push(image::BUSYBOX, "podwright/busybox:1")?;
    registry.push(image::ENTRYPOINT, "podwright/entrypoint:1")?;
    let store = store(&scratch, "store")?;
    let puller = Puller::new(Arc::clone(&store), RegistryOptions::default(), Pool::default())?;
    let pulled = puller.pull(&reference(&registry)?, RegistryCredentials::Anonymous).await?;
    let lower = store.lower_dirs(&pulled)?.remove(0);
    let busybox = fs::metadata(lower.join("bin/busybox"))?;
    assert!(busybox.nlink() > 10 && busybox.mode() & 0o111 == 0o111, "applets are hard links: {busybox:?}");
    assert_eq!(store.configuration(&pulled)?.config.cmd, ["sh"]);
    // Another image with the same layer: only its documents are transferred.
    let before = registry.log().matches("/blobs/").count();
    let other = format!("{}/podwright/entrypoint:1", registry.address()).parse()?;
    let other = puller.pull(&other, RegistryCredentials::Anonymous).await?;
    assert_eq!(store.lower_dirs(&other)?, [lower]);
    assert!(registry.log().matches("/blobs/").count() <= before + 2, "{}", registry.log());
    // By digest, which the registry names in its header.
    let digest = pulled.repo_digests().next().context("a repository digest")?.clone();
    assert_eq!(puller.pull(&digest, RegistryCredentials::Anonymous).await?.id, pulled.id);
    let absent = format!("{}/podwright/absent:1", registry.address()).parse()?;
    let error = puller.pull(&absent, RegistryCredentials::Anonymous).await.expect_err("there is no such image");
    assert_eq!(error.kind(), PullErrorKind::NotFound);
    assert_eq!(store.collect_garbage(GcRoots::default)?.blobs, 0);
    Ok(())
}

#[tokio::test]
async fn a_private_registry_wants_its_password() -> Result<()> {
    let scratch = Scratch::new()?;
    let registry = Registry::start_private(&scratch)?;
    registry.push(image::BUSYBOX, "podwright/busybox:1")?;
    let store = store(&scratch, "store")?;
    let puller = Puller::new(Arc::clone(&store), RegistryOptions::default(), Pool::default())?;
    let with = |password: &str| RegistryCredentials::Basic { username: USER.into(), password: password.into() };
    for credentials in [RegistryCredentials::Anonymous, with("wrong")] {
        let error = puller.pull(&reference(&registry)?, credentials).await.expect_err("refused");
        assert_eq!(error.kind(), PullErrorKind::Unauthorized, "{error:?}");
    }
    assert!(store.images().is_empty());
    puller.pull(&reference(&registry)?, with(PASSWORD)).await?;
    assert_eq!(store.images().len(), 1);
    Ok(())
}

#[test]
fn the_docker_archive_of_the_test_images_is_loaded_and_saved() -> Result<()> {
    let scratch = Scratch::new()?;
    let (from, to) = (store(&scratch, "from")?, store(&scratch, "to")?);
    let loaded = from.load(fs::File::open(image::archive()?)?, &AtomicBool::new(false))?;
    assert_eq!(loaded.len(), image::ALL.len());
    let path = scratch.dir("saved")?.join("all.tar");
    from.save(&loaded, fs::File::create(&path)?)?;
    let again = to.load(fs::File::open(&path)?, &AtomicBool::new(false))?;
    for name in image::ALL {
        let (a, b) = (from.find(name)?.context(name)?, to.find(name)?.context(name)?);
        assert_eq!(a.id, b.id, "{name}");
    }
    assert_eq!(again.len(), loaded.len());
    Ok(())
}
