//! The two commands alone, for trying them without the rest.

use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: netboot::cmd::Args,
}

#[tokio::main]
async fn main() {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    if let Err(error) = netboot::cmd::run(Cli::parse().args, tasks).await {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
