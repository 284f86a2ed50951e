// Package dataplane compares the data plane, packets in memory and a million live flows, with what one would build
// from public libraries: gopacket's decoder, bart for the virtual addresses, a sharded map or otter for the sessions,
// go-maglev for the nodes and gVisor's headers with incremental checksums.
//
//	go test -run Ratios -v ./dataplane
package dataplane
