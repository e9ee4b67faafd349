#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{field}: {text:?} is not an IP address")]
    Address { field: &'static str, text: String },

    #[error(
        "networking.serviceSubnet: {subnet:?} has no address for {wanted}; give a subnet such as 10.96.0.0/12"
    )]
    ServiceSubnet { subnet: String, wanted: &'static str },

    #[error(transparent)]
    Pki(#[from] pki::Error),

    #[error(transparent)]
    Config(#[from] api_config::Error),
}
