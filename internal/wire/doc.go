// Package wire reads and rewrites IPv4, IPv6, TCP, UDP, ICMP and SCTP headers in place.
//
// The model: [Parse] checks a packet once against its own lengths and fills a [View] of
// offsets; everything else works on the packet's bytes through a View that said OK, and
// need not check again. Nothing here allocates, panics or reads past the end of a packet.
//
// Checksums are updated incrementally (RFC 1624): a [Diff] collects what changed, once, and is
// applied to every checksum that covers it. A checksum left for the hardware to finish
// (virtio-net NEEDS_CSUM) holds the pseudo-header's sum alone and is updated as such.
//
// The package holds no state; all functions are safe for concurrent use on different packets.
package wire
