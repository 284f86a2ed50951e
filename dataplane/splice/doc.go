// Package splice is delayed binding: it answers a client's TCP handshake, reads the beginning of its stream, opens a connection to
// a server chosen by what was read, and then gets out of the way by translating numbers.
//
// # Life of a connection
//
//	SYN ──► Cookies.Answer ──► nothing is kept
//	ACK ──► Cookies.Check ──► Conn: Collecting ──Connect──► Connecting ──SYN-ACK──► Replaying ──all acknowledged──► Spliced
//	                                    │  ▲                     │
//	                                    │  └──refused, silent────┘ (Connect again, to another server)
//	                                    └──Reply──► Replying ──► Closed
//
// No state exists before a client has proven its address: everything the balancer must know is in the sequence number (and in the
// timestamp, for options) that the client returns (RFC 4987, 3.6).
//
// The connection to the server begins with the client's own sequence number, so that the client's stream needs no translation. A
// [Translation], a small value, maps what is left: the server's sequence numbers, timestamps and
// window scale. After the splice that is all there is, and no byte of the stream is held.
//
// A client whose question is whole waits for an answer. With [Conn.Patient] it is then spared two bare acknowledgements, the balancer's and the server's,
// if the server answers within 40 ms.
//
// A connection whose later requests are to be judged as well becomes a [Relay] instead: it goes on as two connections in the client's direction,
// and is translated in the server's. Between two requests it may move to another server, whose connection begins with the
// client's number at that time; one that is resumed has other numbers, see [ShiftClient].
//
// The package does no I/O, has no clock and starts no goroutine: segments, times and answers are passed in and out. A [Conn] belongs to one
// goroutine at a time; [Cookies] and [Translation] are safe for concurrent use.
package splice
