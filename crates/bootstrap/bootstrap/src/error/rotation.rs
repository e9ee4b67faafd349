//! The errors of a rotation of authorities.

/// The reason why a step of a rotation cannot run yet.
#[derive(Debug, thiserror::Error)]
pub enum RotationError {
    #[error(
        "a rotation has issued certificates: complete it with `{program} certs rotate-ca finish` first"
    )]
    Unfinished { program: &'static str },
    #[error(
        "another control plane has created the new authority {pin}: there, `{program} init phase upload-certs \
         --upload-certs` shares it and prints the key for --certificate-key here"
    )]
    OtherAuthority { pin: String, program: &'static str },
    #[error(
        "the control planes have not completed this step: run `{program} certs rotate-ca {step}` on each of them first"
    )]
    ControlPlanes { step: &'static str, program: &'static str },
    #[error("this machine does not trust {pin} yet: run `{program} certs rotate-ca trust` first")]
    NotTrusted { pin: String, program: &'static str },
    #[error(
        "cannot {step} yet: {} {reason}. Run that step there, delete the Nodes of removed machines, or continue with \
         --force",
        nodes.join(", ")
    )]
    Nodes { step: &'static str, reason: &'static str, nodes: Vec<String> },
}
