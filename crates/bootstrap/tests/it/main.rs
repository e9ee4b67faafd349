//! Integration tests: what upstream's kubeadm wrote, where it is at hand, and the commands as a user runs them.

mod golden;
