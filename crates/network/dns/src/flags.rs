//! The command line of CoreDNS, whose flags have one dash: `-conf FILE`.

use std::{ffi::OsString, path::PathBuf};

use api_config::GoFlag as _;

/// Runs cluster DNS
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// The Corefile
    #[arg(long, default_value = "Corefile")]
    pub conf: PathBuf,
    /// The port of server blocks without a port
    #[arg(long = "dns.port", visible_alias = "p", default_value_t = 53)]
    pub port: u16,
    /// Accepted without effect; the service manager tracks the process
    #[arg(long, hide = true)]
    pub pidfile: Option<PathBuf>,
    /// Accepted without effect; there is no banner
    #[arg(long, go_bool(), hide = true)]
    pub quiet: Option<bool>,
    /// The kubeconfig outside a Pod, unless the Corefile names one
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
}

/// Rewrites Go's one-dash flags with two dashes, as the parser requires.
pub fn two_dashes(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let rewrite = |arg: OsString| match arg.to_str() {
        Some(text) if text.len() > 2 && text.starts_with('-') && !text.starts_with("--") => {
            format!("-{text}").into()
        }
        Some("-p") => "--p".into(),
        _ => arg,
    };
    args.into_iter().map(rewrite).collect()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    type Cli = api_config::CommandLine<Args>;

    #[test]
    fn parses_kubeadm_arguments() {
        for args in [
            ["coredns", "-conf", "/etc/coredns/Corefile"].as_slice(),
            &["coredns", "--conf=/etc/coredns/Corefile", "-quiet"],
        ] {
            let args = two_dashes(args.iter().map(OsString::from));
            assert_eq!(
                Cli::try_parse_from(args).unwrap().args.conf,
                PathBuf::from("/etc/coredns/Corefile")
            );
        }
        let cli =
            Cli::try_parse_from(two_dashes(["coredns", "-dns.port=1053"].map(OsString::from)))
                .unwrap();
        assert_eq!(cli.args.port, 1053);
        assert!(Cli::try_parse_from(two_dashes(["coredns", "-frob"].map(OsString::from))).is_err());
    }
}
