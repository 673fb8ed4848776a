//! The `aquifer` command.
#![forbid(unsafe_code)]

mod account;
mod demo;
mod devices;
mod export;
mod import;
mod inspect;
mod json;
mod policies;
mod replay;
mod sample;
mod stats;
mod table;
mod threads;
mod view;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Arrays in memory that the CPU and a device both see, and a true account of every byte.
#[derive(Debug, Parser)]
#[command(name = "aquifer", version, about, after_help = AFTER_HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "Environment:
  AQUIFER_DEVICE   the device to use: cpu, vulkan[:n], metal, cuda[:n]
  AQUIFER_STORAGE  the storage mode chosen at run time: shared or private
  AQUIFER_TRACE=path   record what happens to memory, for replay, view and export
  AQUIFER_TRACE_STACKS=1  with the call stack of every allocation
  AQUIFER_WATCH=path   let `aquifer watch` look, at a socket of this path
  AQUIFER_VULKAN_VALIDATION=1  Vulkan under the validation layer, messages on standard error
  NO_COLOR         no colours

Exit status: 0 done, 1 a file or a device is not what it should be, 2 wrong usage.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Print what is in a checkpoint, computed on the device without copying the file
    Inspect {
        /// A safetensors file
        file: PathBuf,
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Write a sample checkpoint of 64 MiB, inspect it, and let CPU and device work on one array
    Demo {
        #[command(flatten)]
        output: OutputOptions,
    },
    /// Play a trace of allocations again: as it was, with other limits, or by other rules
    Replay(replay::Options),
    /// Draw a trace as one page: memory over time, what is live, where it lies
    View(view::Options),
    /// Show the figures of a running program, if it was started with AQUIFER_WATCH=path
    Watch(watch::Options),
    /// Write a trace for other tools: Chrome's trace events (Perfetto), or JSON lines
    Export(export::Options),
    /// List the devices that are here, and why others are not
    Devices {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Debug, clap::Args)]
struct OutputOptions {
    /// Print one JSON document
    #[arg(long)]
    json: bool,
    /// The device: cpu, vulkan, vulkan:N, metal, cuda, cuda:N (default: AQUIFER_DEVICE, else the best)
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
}

impl OutputOptions {
    fn open(&self) -> aquifer::Result<aquifer::Device> {
        match &self.device {
            Some(name) => aquifer::Device::named(name),
            None => aquifer::Device::open(),
        }
    }
}

/// What ends a command early: an error to print, or a reader that has gone.
#[derive(Debug)]
enum Failure {
    Library(aquifer::Error),
    Output(std::io::Error),
    /// A file is not what it should be.
    File(String),
}

impl From<aquifer::Error> for Failure {
    fn from(error: aquifer::Error) -> Self {
        Self::Library(error)
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self::Output(error.into())
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match &arguments.command {
        Command::Inspect { file, output } => inspect::run(file, output),
        Command::Demo { output } => demo::run(output),
        Command::Replay(options) => replay::run(options),
        Command::View(options) => view::run(options),
        Command::Watch(options) => watch::run(options),
        Command::Export(options) => export::run(options),
        Command::Devices { json } => devices::run(*json),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // `aquifer ... | head` is no error.
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(Failure::Output(error)) => {
            eprintln!("aquifer: {error}");
            ExitCode::FAILURE
        }
        Err(Failure::File(reason)) => {
            eprintln!("aquifer: {reason}");
            ExitCode::FAILURE
        }
        Err(Failure::Library(error)) => {
            eprintln!("aquifer: {error}");
            // A device that does not exist is a wrong name on the command line.
            let usage =
                matches!(error.kind(), aquifer::ErrorKind::NoDevice | aquifer::ErrorKind::Name);
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}
