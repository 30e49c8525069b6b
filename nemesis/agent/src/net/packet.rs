//! Parses the headers of an IPv4 packet.

use std::net::{Ipv4Addr, SocketAddrV4};

/// The header fields that faults use. The ports are 0 if the packet is neither TCP nor UDP, or is a later fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Headers {
    pub from: SocketAddrV4,
    pub to: SocketAddrV4,
    pub payload_bytes: u32,
    /// True if the packet ends its TCP connection: FIN or RST.
    pub ends: bool,
}

/// The longest headers: 60 bytes of IPv4 and 60 of TCP.
pub(super) const HEADER_BYTES_MAX: u32 = 120;

const TCP: u8 = 6;
const UDP: u8 = 17;
const FIN_OR_RST: u8 = 0b101;

/// Parses the first bytes of a packet. Returns none if the packet is not IPv4 or its headers are truncated.
pub(super) fn headers(packet: &[u8]) -> Option<Headers> {
    let ip = packet.first_chunk::<20>()?;
    if ip[0] >> 4 != 4 {
        return None;
    }
    let ip_bytes = usize::from(ip[0] & 15) * 4;
    let total_bytes = u32::from(u16::from_be_bytes([ip[2], ip[3]]));
    let first_fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x1fff == 0;
    let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
    let inner = packet.get(ip_bytes..)?;
    let (ports, inner_bytes, ends) = match ip[9] {
        TCP if first_fragment => {
            let tcp = inner.first_chunk::<20>()?;
            (ports(tcp), usize::from(tcp[12] >> 4) * 4, tcp[13] & FIN_OR_RST != 0)
        }
        UDP if first_fragment => (ports(inner.first_chunk::<8>()?), 8, false),
        _ => ((0, 0), 0, false),
    };
    Some(Headers {
        from: SocketAddrV4::new(address(12), ports.0),
        to: SocketAddrV4::new(address(16), ports.1),
        payload_bytes: total_bytes.saturating_sub((ip_bytes + inner_bytes) as u32),
        ends,
    })
}

fn ports(inner: &[u8]) -> (u16, u16) {
    (u16::from_be_bytes([inner[0], inner[1]]), u16::from_be_bytes([inner[2], inner[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes the headers of a packet: IPv4 with four bytes of options, TCP with twelve, and `payload` bytes that are
    /// missing.
    fn tcp(payload: u16, flags: u8) -> Vec<u8> {
        let mut packet = vec![0; 24 + 32];
        packet[0] = 0x46;
        packet[2..4].copy_from_slice(&(24 + 32 + payload).to_be_bytes());
        packet[9] = TCP;
        packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        packet[24..28].copy_from_slice(&[0x90, 0x01, 0x18, 0xeb]);
        packet[24 + 12] = 8 << 4;
        packet[24 + 13] = flags;
        packet
    }

    #[test]
    fn payload_excludes_both_headers_with_their_options() {
        let found = headers(&tcp(100, 0b1_1000)).unwrap();
        let expected = Headers {
            from: "10.0.0.1:36865".parse().unwrap(),
            to: "10.0.0.2:6379".parse().unwrap(),
            payload_bytes: 100,
            ends: false,
        };
        assert_eq!(found, expected);
        assert_eq!(headers(&tcp(0, 0b1_0000)).unwrap().payload_bytes, 0, "an acknowledgement has none");
    }

    #[test]
    fn a_fin_and_a_reset_end_a_connection_and_an_acknowledgement_does_not() {
        let ends = |flags| headers(&tcp(0, flags)).unwrap().ends;
        assert_eq!([0b1_0001, 0b1_0100, 0b1_0000, 0b0_0010].map(ends), [true, true, false, false]);
    }

    #[test]
    fn truncated_packets_and_ipv6_have_no_headers() {
        let whole = tcp(0, 0);
        assert!((0..44).all(|length| headers(&whole[..length]).is_none()));
        let mut six = whole;
        six[0] = 0x60;
        assert_eq!(headers(&six), None);
    }

    #[test]
    fn only_a_later_fragment_has_no_ports_and_is_all_payload() {
        let found = |protocol, fragment: u16| {
            let mut packet = tcp(100, 0b1_0001);
            packet[6..8].copy_from_slice(&fragment.to_be_bytes());
            packet[9] = protocol;
            let Headers { from, to, payload_bytes, ends } = headers(&packet).unwrap();
            (from.port(), to.port(), payload_bytes, ends)
        };
        // Linux forbids fragments in most packets, and the first fragment announces others.
        for first in [0, 0x4000, 0x2000] {
            assert_eq!(found(TCP, first), (36_865, 6_379, 100, true), "{first:#x}");
            assert_eq!(found(UDP, first), (36_865, 6_379, 124, false), "{first:#x}");
        }
        for later in [0x0001, 0x2001, 0x1000] {
            assert_eq!(found(TCP, later), (0, 0, 132, false), "{later:#x}");
            assert_eq!(found(UDP, later), (0, 0, 132, false), "{later:#x}");
        }
    }
}
