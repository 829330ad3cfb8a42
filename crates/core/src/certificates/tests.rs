//! Tables of certificates and times, and lists of events.

use super::*;

fn names(organizations: &str, dns: &str, ips: &str) -> CertificateNames {
    let split = |text: &str| text.split_whitespace().map(str::to_owned).collect();
    CertificateNames {
        common_name: "system:node:n".into(),
        organizations: split(organizations),
        dns_names: split(dns),
        ip_addresses: ips.split_whitespace().map(|ip| ip.parse().unwrap()).collect(),
    }
}

fn wall(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

/// The boot clock began 1000 s before the certificates of these tests.
fn at(second: i64) -> Now {
    Now { boot: Duration::from_secs(u64::try_from(1000 + second).unwrap()), wall: wall(second) }
}

/// Valid from second 0 on.
fn certificate(names: CertificateNames, seconds: i64) -> CertificateFacts {
    CertificateFacts { names, not_before: wall(0), not_after: wall(seconds), serial: "2a".into() }
}

/// A rotation whose certificate has all wanted names and is valid for 1000 s.
fn running() -> Rotation {
    let mut rotation = Rotation::new("n/client".into());
    rotation.want(Some(client_names("n")));
    rotation.found(Some(certificate(client_names("n"), 1000)), false);
    rotation
}

fn request(step: &RotationStep) -> Option<Requester> {
    match step {
        RotationStep::Request { requester, .. } => Some(*requester),
        _ => None,
    }
}

fn waits(step: &RotationStep) -> Option<Duration> {
    match step {
        RotationStep::Wait(until) => *until,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_certificate_fits_if_it_has_at_least_what_is_wanted() {
    let wanted = names("system:nodes", "n n.local", "10.0.0.1 fd00::1");
    let rows = [
        (wanted.clone(), None),
        (names("system:nodes more", "n n.local other", "10.0.0.1 10.0.0.2 fd00::1"), None),
        (CertificateNames { common_name: "system:node:m".into(), ..wanted.clone() }, Some("another common name")),
        (names("more", "n n.local", "10.0.0.1 fd00::1"), Some("the organization \"system:nodes\"")),
        (names("system:nodes", "n", "10.0.0.1 fd00::1"), Some("the host name \"n.local\"")),
        (names("system:nodes", "n n.local", "10.0.0.1 fd00::2"), Some("the address fd00::1")),
    ];
    for (present, lacks) in rows {
        let missing = wanted.missing_from(&present).map(|missing| missing.to_string());
        assert_eq!(missing.is_some(), lacks.is_some(), "{present:?}: {missing:?}");
        assert!(missing.unwrap_or_default().contains(lacks.unwrap_or_default()), "{present:?}");
    }
}

#[test]
fn serving_names_are_sorted_and_need_an_ip_address() {
    assert_eq!(serving_names("n", ["n", "host.local"]), None);
    assert_eq!(serving_names("n", []), None);
    let some = serving_names("n", ["10.0.0.9", "b", "", "10.0.0.1", "a", "b", "fd00::1"]).unwrap();
    assert_eq!(some, names("system:nodes", "a b", "10.0.0.1 10.0.0.9 fd00::1"));
    assert_eq!(
        some.ip_addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.0.0.1", "10.0.0.9", "fd00::1"]
    );
}

#[test]
fn rotations_are_spread_over_70_to_90_percent_of_the_lifetime() {
    let mut times = vec![];
    for serial in 0..1000 {
        let own = CertificateFacts { serial: format!("{serial:x}"), ..certificate(client_names("n"), 1000) };
        let second = own.rotation_time("n/client", wall(0)).as_second() - wall(0).as_second();
        assert_eq!(own.rotation_time("n/client", wall(0)), own.rotation_time("n/client", wall(0)));
        assert!((700..=900).contains(&second), "{second}");
        times.push(second);
    }
    let early = times.iter().filter(|second| **second < 800).count();
    assert!((400..600).contains(&early), "{early} of 1000 are in the first half");
    assert_ne!(
        certificate(client_names("n"), 1000).rotation_time("a", wall(0)),
        certificate(client_names("n"), 1000).rotation_time("b", wall(0))
    );
}

#[test]
fn a_certificate_is_requested_when_it_is_due() {
    let none = Rotation { current: None, ..running() };
    let expired = {
        let mut rotation = running();
        rotation.found(Some(certificate(client_names("n"), 10)), false);
        rotation
    };
    let of_another_node = {
        let mut rotation = running();
        rotation.found(Some(certificate(client_names("m"), 1000)), false);
        rotation
    };
    let temporary = {
        let mut rotation = running();
        rotation.found(Some(certificate(client_names("n"), 1000)), true);
        rotation
    };
    let unwanted = {
        let mut rotation = Rotation { current: None, ..running() };
        rotation.want(None);
        rotation
    };
    let rows = [
        ("none", none, 50, Some(Requester::Bootstrap)),
        ("expired", expired, 50, Some(Requester::Bootstrap)),
        ("of another node", of_another_node, 50, Some(Requester::Current)),
        ("temporary", temporary, 50, Some(Requester::Current)),
        ("nothing is wanted", unwanted, 50, None),
        ("young", running(), 50, None),
        ("before 70 %", running(), 699, None),
        ("after 90 %", running(), 901, Some(Requester::Current)),
        ("the last second", running(), 1000, Some(Requester::Current)),
        ("after the last second", running(), 1001, Some(Requester::Bootstrap)),
    ];
    for (what, mut rotation, second, wanted) in rows {
        assert_eq!(request(&rotation.step(at(second))), wanted, "{what}");
    }
}

#[test]
fn it_waits_for_the_rotation_and_checks_the_clock_every_ten_minutes() {
    let mut rotation = running();
    rotation.found(Some(certificate(client_names("n"), 10_000)), false);
    assert_eq!(waits(&rotation.step(at(0))), Some(at(600).boot));
    // The clock was set: 8999 s passed while the boot clock moved by 600 s.
    let set = Now { boot: at(600).boot, wall: wall(9001) };
    assert_eq!(request(&rotation.step(set)), Some(Requester::Current));
    let mut rotation = running();
    let due = running().current().unwrap().rotation_time("n/client", wall(0)).as_second() - wall(0).as_second();
    let until = waits(&rotation.step(at(due - 5))).unwrap();
    assert!(until >= at(due).boot && until <= at(due + 1).boot, "{until:?}");
}

#[test]
fn failures_are_retried_after_2_4_8_16_and_then_every_32_seconds() {
    let mut rotation = Rotation { current: None, ..running() };
    let mut second = 0;
    for (failures, delay) in [2, 4, 8, 16, 32, 32, 32].into_iter().enumerate() {
        assert!(request(&rotation.step(at(second))).is_some(), "after {failures} failures");
        rotation.failed(RequestFailure::Other, at(second));
        let until = waits(&rotation.step(at(second))).unwrap();
        let delay = (at(second + delay).boot, at(second + delay).boot + Duration::from_secs(4));
        assert!(until >= delay.0 && until < delay.1, "after {failures} failures: {until:?} {delay:?}");
        second += i64::try_from((until - at(second).boot).as_secs()).unwrap() + 1;
    }
    assert!(request(&rotation.step(at(second))).is_some());
    rotation.issued(certificate(client_names("n"), 100_000), at(second));
    assert_eq!(rotation.failures(), 0);
    rotation.want(Some(client_names("m")));
    assert!(request(&rotation.step(at(second))).is_some());
    rotation.failed(RequestFailure::Other, at(second));
    let until = waits(&rotation.step(at(second))).unwrap();
    assert!(until <= at(second + 3).boot, "a success resets the delay: {until:?}");
}

#[test]
fn a_refused_certificate_is_replaced_with_the_bootstrap_credentials() {
    let mut rotation = running();
    let mut used = vec![];
    let mut second = 910;
    use RequestFailure::{Other, Unauthorized};
    for failure in [Other, Unauthorized, Unauthorized, Other] {
        used.push(request(&rotation.step(at(second))).expect("a request"));
        rotation.failed(failure, at(second));
        second += 20;
    }
    use Requester::{Bootstrap, Current};
    assert_eq!(used, [Current, Current, Bootstrap, Current]);
}

#[test]
fn a_pending_request_is_reported_once_and_replaced_after_15_minutes() {
    let mut rotation = Rotation { current: None, ..running() };
    assert!(request(&rotation.step(at(0))).is_some());
    assert_eq!(rotation.step(at(1)), RotationStep::Wait(None), "it is not created yet");
    rotation.created("csr-1");
    assert_eq!(rotation.step(at(2)), RotationStep::Wait(Some(at(5).boot)));
    assert_eq!(rotation.step(at(5)), RotationStep::ReportPending("csr-1".into()));
    assert_eq!(rotation.step(at(5)), RotationStep::Wait(Some(at(900).boot)));
    assert_eq!(rotation.step(at(900)), RotationStep::Abandon(AbandonReason::TooLong));
    assert_eq!(rotation.failures(), 1);
    let until = waits(&rotation.step(at(900))).unwrap();
    assert!(until >= at(902).boot, "{until:?}");
    assert!(request(&rotation.step(at(903))).is_some());
}

#[test]
fn a_request_for_other_names_is_abandoned_and_the_next_follows_at_once() {
    let first = serving_names("n", ["10.0.0.1"]).unwrap();
    let second = serving_names("n", ["10.0.0.1", "10.0.0.2"]).unwrap();
    let mut rotation = Rotation::new("n/server".into());
    rotation.want(Some(first.clone()));
    assert!(request(&rotation.step(at(0))).is_some());
    rotation.want(Some(second.clone()));
    assert_eq!(rotation.step(at(0)), RotationStep::Wait(None), "creating is not interrupted");
    rotation.created("csr-1");
    assert_eq!(rotation.step(at(0)), RotationStep::Abandon(AbandonReason::NamesChanged));
    let next = rotation.step(at(0));
    assert_eq!(next, RotationStep::Request { names: second.clone(), requester: Requester::Bootstrap });
    assert_eq!(rotation.failures(), 0);
    rotation.created("csr-2");
    rotation.issued(certificate(second, 1000), at(1));
    // An address that is gone stays in the certificate.
    rotation.want(Some(first));
    assert!(waits(&rotation.step(at(1))).is_some());
    rotation.want(None);
    assert_eq!(rotation.step(at(1)), RotationStep::Wait(None));
}

#[test]
fn requests_to_a_signer_that_leaves_out_names_have_growing_delays() {
    let mut rotation = Rotation::new("n/server".into());
    rotation.want(serving_names("n", ["10.0.0.1"]));
    let mut second = 0;
    for least in [2, 4, 8, 16, 32, 32] {
        assert!(request(&rotation.step(at(second))).is_some());
        rotation.issued(certificate(client_names("n"), 100_000), at(second));
        let until = waits(&rotation.step(at(second))).unwrap();
        assert!(until >= at(second + least).boot, "{least}: {until:?}");
        second += least + 4;
    }
}

#[test]
fn a_short_lifetime_is_counted_from_the_moment_of_issue() {
    let mut rotation = Rotation { current: None, ..running() };
    assert!(request(&rotation.step(at(300))).is_some());
    // Valid for 20 s from now on; the signer set the begin back by 5 minutes.
    rotation.issued(certificate(client_names("n"), 320), at(300));
    assert_eq!(rotation.failures(), 0);
    let until = waits(&rotation.step(at(300))).unwrap();
    assert!(until >= at(314).boot && until <= at(318).boot, "{until:?}");
    // After a restart the time of issue is unknown: the certificate is replaced early rather than late.
    rotation.found(Some(certificate(client_names("n"), 320)), false);
    assert_eq!(request(&rotation.step(at(300))), Some(Requester::Current));
}
