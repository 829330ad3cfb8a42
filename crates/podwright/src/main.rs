//! The podwright binary: parses the command line and runs the command.

use std::process::ExitCode;

use clap::error::ErrorKind;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

mod check;
mod cli;
mod client;
mod cluster;
mod config;
mod decode;
mod embedded;
mod go_duration;
mod heap;
mod image_command;
mod log_rotation;
mod logging;
mod man;
mod notify;
mod print;
mod replay;
mod run_flags;
mod runtime_handler;
mod special_file;
mod store_images;
mod takeover;
mod wire;

use cli::{Cli, Command, EXIT_USAGE, EngineFlags};
use config::AgentConfig;
use run_flags::RunFlags;

fn main() -> ExitCode {
    // First of all: a zygote has neither threads nor settings of the agent.
    if podwright_shim::is_zygote(std::env::args_os()) {
        return podwright_shim::zygote::main();
    }
    let cli = match Cli::parse_from(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            let requested = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return if requested { ExitCode::SUCCESS } else { ExitCode::from(EXIT_USAGE) };
        }
    };
    match cli.command {
        Command::Run(flags) => run(&flags),
        Command::Client(command) => client::run(&command),
        Command::Check(flags) => check::run(&flags),
        Command::Replay(flags) => replay::run(&flags),
        Command::Takeover(flags) => takeover::run(&flags),
        Command::Image(flags) => image_command::run(&flags),
        Command::Engine(flags) => engine(&flags),
        Command::Version => {
            println!("podwright {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Command::Man { dir } => match man::write(&dir) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("podwright: write {}: {error}", dir.display());
                ExitCode::FAILURE
            }
        },
        Command::Completion { shell } => {
            Cli::complete(shell, &mut std::io::stdout());
            ExitCode::SUCCESS
        }
    }
}

fn run(flags: &RunFlags) -> ExitCode {
    heap::limit_malloc_arenas();
    let config = match AgentConfig::load(flags) {
        Ok(config) => config,
        Err(error) => {
            // Logging is configured by what failed to load.
            eprintln!("podwright: {error}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    logging::start(config.logging);
    for warning in &config.warnings {
        tracing::warn!(note = %warning, "configuration has a problem");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(16)
        // Decoding a pod recurses deeply, most of all without optimisation; untouched pages of a stack cost nothing.
        .thread_stack_size(2 << 20)
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("podwright: start the async runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(async {
        let stop = CancellationToken::new();
        watch_signals(stop.clone())?;
        wire::run(config, stop).await
    });
    // A thread that hangs in a dead file system must not block the exit.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = %format!("{error:#}"), "agent failed");
            ExitCode::FAILURE
        }
    }
}

/// Serves the embedded engine alone.
fn engine(flags: &EngineFlags) -> ExitCode {
    heap::limit_malloc_arenas();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("podwright: start the async runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    logging::start(config::LoggingConfig::default());
    let result = runtime.block_on(async {
        let stop = CancellationToken::new();
        watch_signals(stop.clone())?;
        embedded::serve(flags, stop).await
    });
    runtime.shutdown_background();
    embedded::exit_code(result)
}

/// Cancels `stop` on SIGTERM or SIGINT; a second signal exits immediately. Containers keep running.
fn watch_signals(stop: CancellationToken) -> anyhow::Result<()> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    podwright_tasks::spawn("signals", async move {
        for round in 0.. {
            let name = tokio::select! {
                _ = term.recv() => "SIGTERM",
                _ = int.recv() => "SIGINT",
            };
            if round > 0 {
                tracing::warn!(signal = name, "second signal received, exiting immediately");
                std::process::exit(1);
            }
            tracing::info!(signal = name, "signal received, stopping; containers keep running");
            stop.cancel();
        }
    });
    Ok(())
}
