package splice

// outbox is how much of the client's stream the server was sent.
type outbox struct {
	mss       int // of segments to the server
	flight    int // how many bytes have been sent
	flightFIN bool
}

// replay sends the server data as far as its window lets, with fin the end of the stream behind them, and reports whether that was anything. base is the
// sequence number of the data, sent is up to where the server has acknowledged. A timer's call sends the first segment that is not acknowledged
// again, at least a byte of it, so that a closed window is probed (RFC 9293, 3.8.6.1); what was sent behind it counts as lost.
func (o *outbox) replay(base uint32, data []byte, fin bool, sent uint32, window int, timer bool, send func(flags uint8, seq uint32, payload []byte)) (any bool) {
	acked := min(max(0, int(int32(sent-base))), len(data))
	from, limit := max(o.flight, acked), min(len(data), int(int32(sent+uint32(window)-base)))
	if timer {
		from, limit = acked, min(len(data), acked+max(1, min(o.mss, window)))
		o.flight, o.flightFIN = acked, false
	}
	for from < limit {
		to := min(from+o.mss, limit)
		flags := uint8(ACK)
		if to == len(data) {
			flags |= PSH
			if fin {
				flags |= FIN
				o.flightFIN = true
			}
		}
		send(flags, base+uint32(from), data[from:to])
		from, any = to, true
	}
	o.flight = max(o.flight, from)
	if o.flight == len(data) && fin && !o.flightFIN {
		o.flightFIN, any = true, true
		send(ACK|FIN, base+uint32(len(data)), nil)
	}
	return any
}
