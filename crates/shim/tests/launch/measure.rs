//! How long a launch takes.

use std::time::{Duration, Instant};

use podwright_linux::exit_info;
use podwright_shim::launch::{begin_init, setup_pod};
use podwright_shim::plan::SetupPlan;

use crate::bed::{Bed, streams};

pub(crate) const TESTS: &[(&str, fn())] = &[("the_time_of_a_launch", launch)];

/// Minimum over 50 launches, because the host is shared: to `execve`, and to the reaped exit.
fn launch() {
    let bed = Bed::new();
    let plan = SetupPlan { new_network: true, new_ipc: true, new_uts: true, ..SetupPlan::default() };
    let setup = Instant::now();
    let namespaces = setup_pod(&plan).unwrap();
    let setup = setup.elapsed();
    let mut times: Vec<(Duration, Duration)> = vec![];
    for _ in 0..50 {
        std::fs::remove_dir_all(bed.path("work")).unwrap();
        std::fs::create_dir(bed.path("work")).unwrap();
        let plan = bed.overlay("exit 0");
        let (_reader, writer) = std::io::pipe().unwrap();
        let began = Instant::now();
        let launched = begin_init(&plan, &namespaces, streams(writer.into())).unwrap().finish().unwrap();
        let executed = began.elapsed();
        exit_info::wait(&launched.pidfd, true).unwrap();
        times.push((executed, began.elapsed()));
    }
    let best = |of: fn(&(Duration, Duration)) -> Duration| times.iter().map(of).min().unwrap().as_secs_f64() * 1e3;
    println!(
        "bench launch: execve {:.2} ms, reaped {:.2} ms (min of {}), namespaces of the pod {:.2} ms",
        best(|time| time.0),
        best(|time| time.1),
        times.len(),
        setup.as_secs_f64() * 1e3
    );
}
