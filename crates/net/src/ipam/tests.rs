use super::*;

fn ipam(dir: &tempfile::TempDir) -> Ipam {
    Ipam::new(dir.path().join("net"))
}

fn range(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn addresses_are_given_in_order_and_a_freed_one_is_used_last() {
    let dir = tempfile::tempdir().unwrap();
    let (ipam, range) = (ipam(&dir), range("10.1.0.0/29"));
    let first = ipam.reserve("a", &[range]).unwrap();
    assert_eq!(first, [address("10.1.0.2")]);
    assert_eq!(ipam.release("a").unwrap(), 1);
    let given: Vec<_> = ["b", "c", "d", "e", "f"].map(|owner| ipam.reserve(owner, &[range]).unwrap()[0]).into();
    assert_eq!(given, ["10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6", "10.1.0.2"].map(address));
}

#[test]
fn an_exhausted_range_is_an_error_that_names_it_and_reserves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (ipam, small, large) = (ipam(&dir), range("10.1.0.0/30"), range("fd00::/64"));
    assert_eq!(ipam.reserve("a", &[large, small]).unwrap(), [address("fd00::2"), address("10.1.0.2")]);
    let error = ipam.reserve("b", &[large, small]).unwrap_err();
    assert_eq!(error.to_string(), "no free address in 10.1.0.0/30: all 1 are taken; stop pods or give a larger range");
    assert_eq!(ipam.addresses_of("b").unwrap(), [] as [IpAddr; 0]);
    assert_eq!(ipam.leases().unwrap().len(), 2);
}

#[test]
fn the_layout_is_that_of_host_local() {
    let dir = tempfile::tempdir().unwrap();
    let ipam = ipam(&dir);
    ipam.reserve("abc", &[range("10.1.0.0/24"), range("fd00::/64")]).unwrap();
    let read = |name: &str| fs::read_to_string(dir.path().join("net").join(name)).unwrap();
    assert_eq!(read("10.1.0.2"), "abc\r\neth0");
    assert_eq!(read("fd00::2"), "abc\r\neth0");
    assert_eq!(read("last_reserved_ip.0"), "10.1.0.2");
    assert_eq!(read("last_reserved_ip.1"), "fd00::2");
}

#[test]
fn files_that_are_no_leases_are_ignored_and_stay() {
    let dir = tempfile::tempdir().unwrap();
    let ipam = ipam(&dir);
    let net = dir.path().join("net");
    fs::create_dir_all(net.join("10.1.0.2")).unwrap();
    for name in ["010.1.0.3", "10.1.0.3 ", "FD00::1", "..x", "last_reserved_ip.0"] {
        fs::write(net.join(name), "victim\r\neth0").unwrap();
    }
    std::os::unix::fs::symlink("/etc/hostname", net.join("10.1.0.3")).unwrap();
    assert_eq!(ipam.leases().unwrap(), []);
    assert_eq!(ipam.reserve("a", &[range("10.1.0.0/24")]).unwrap(), [address("10.1.0.4")]);
    assert_eq!(ipam.release("victim").unwrap(), 0);
    assert!(net.join("010.1.0.3").exists() && net.join("10.1.0.3").is_symlink());
}

#[test]
fn concurrent_reservations_never_share_an_address() {
    let dir = tempfile::tempdir().unwrap();
    let (ipam, range) = (ipam(&dir), range("10.1.0.0/26"));
    let given: Vec<IpAddr> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|t| {
                let ipam = &ipam;
                scope.spawn(move || (0..10).map(|n| ipam.reserve(&format!("{t}-{n}"), &[range]).unwrap()[0]).collect())
            })
            .collect();
        threads.into_iter().flat_map(|thread| -> Vec<IpAddr> { thread.join().unwrap() }).collect()
    });
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 40);
}
