// Package flowexport tells collectors about flows, by IPFIX (RFC 7011) or NetFlow version 9 (RFC 3954) over UDP.
//
// An [Exporter] turns [Flow] records into messages no larger than the path carries, sends the
// templates before the first record and again from time to time, since datagrams get lost, and numbers what it
// sends so that a collector sees what is missing. IPv4 and IPv6 flows have templates of their own.
//
// When a flow is reported (at its end, after an active or an inactive timeout, one in n) is its caller's
// decision; [Sampler] and [Due] help with it. Exporter is safe for concurrent use. It starts no goroutine.
package flowexport
