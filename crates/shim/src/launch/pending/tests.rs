use super::*;

#[test]
fn a_launcher_that_reports_without_end_is_given_up() {
    let (ours, theirs) = scm::packet_pair().unwrap();
    rustix::io::ioctl_fionbio(&ours, true).unwrap();
    let failed = Report { ready: None, failure: Some(without_report().into()), sibling: false }.encode_to_vec();
    let (reports, clone) = (Rc::new(ours), None);
    let mut launch = PendingLaunch {
        pid: 0,
        clone,
        sibling: None,
        reports,
        reports_ended: false,
        count: 0,
        ready: None,
        failure: None,
        killed: false,
        adopts: false,
    };
    for _ in 0..REPORTS_MAX {
        scm::send(&theirs, &failed, &[]).unwrap();
    }
    assert!(launch.advance().is_none(), "more may come");
    scm::send(&theirs, &failed, &[]).unwrap();
    assert!(launch.advance().is_some_and(|result| result.is_err()));
}
