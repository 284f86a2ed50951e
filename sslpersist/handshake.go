package sslpersist

const (
	maxOffers  = 4 // tickets of a ClientHello that are remembered
	maxLessons = 8 // lessons between two calls of Next
)

// Handshake follows the two directions of one connection and says what may be learned
// from it, and when. Feed it every byte once, in order, by Client and Server, in the order
// in which the two directions happen; take the lessons by Next after each Server.
//
// It follows until the rest is encrypted, then drops its buffers and costs nothing. A
// second hello of the client, after a HelloRetryRequest or in the clear, is read too: it
// changes no binding, but what it offers is what a later reply answers. One that does not
// wait for the reply to the first is passed over, since that reply is none to it.
//
// The zero Handshake is ready. It must not be copied after use, nor used concurrently.
type Handshake struct {
	client, server stream
	hello          ClientHello // the last one, without its slices
	reply          ServerHello // the last one
	cerr, serr     error
	cdone, sdone   bool // nothing more to be read
	greeted        bool // there was a ClientHello
	answered       bool // there was a ServerHello that is no HelloRetryRequest
	retried        bool // there was a HelloRetryRequest
	resumed        bool
	ticket         bool // the client offered a ticket of TLS 1.2
	noffers        uint8
	nlessons       uint8
	lessons        [maxLessons]Lesson
	offers         [maxOffers]TicketMark // the ticket, else the PSK identities in order
}

// Reset makes h ready for another connection. It keeps the buffers.
func (h *Handshake) Reset() {
	*h = Handshake{
		client: stream{buf: h.client.buf[:0], pool: h.client.pool},
		server: stream{buf: h.server.buf[:0], pool: h.server.pool},
	}
}

// SetBuffer gives h memory for a hello of the client that does not lie in one record of
// one chunk; 64 KiB are always enough. It is dropped once the client's hellos are over.
// Without it memory is made, and grown as bytes come.
func (h *Handshake) SetBuffer(b []byte) { h.client.buf = b[:0] }

// Client takes the next bytes the client sent. It returns ErrShort until the first hello
// is complete. Another error says that there is none, as [ParseClientHello] does: nothing
// will be learned, and every later call returns it too. Otherwise it returns the latest
// hello; its slices are set only by the call that completes it, and are valid
// until the next one.
func (h *Handshake) Client(chunk []byte) (ClientHello, error) {
	if h.cerr != nil {
		return h.hello, h.cerr
	}
	hello := h.hello
	for len(chunk) > 0 && !h.cdone {
		ev, err := h.client.next(chunk)
		if err == nil {
			chunk = chunk[ev.count:]
			err = h.clientEvent(ev, &hello)
		}
		if err != nil {
			h.endClient()
			if !h.greeted {
				h.cerr = err
				return hello, err
			}
		}
	}
	if !h.greeted {
		return hello, ErrShort
	}
	return hello, nil
}

func (h *Handshake) clientEvent(ev event, hello *ClientHello) error {
	var err error
	switch ev.kind {
	case evNone:
		return nil
	case evMessage, evV2:
		*hello = ClientHello{}
		if ev.kind == evV2 {
			err = parseV2Client(hello, ev.body)
		} else {
			err = parseClientBody(hello, ev.body)
		}
		if err != nil {
			return err
		}
		h.greet(hello)
		return nil
	case evCipher:
		// Encrypted from here on, unless this is the one that a client of TLS 1.3 sends for
		// the sake of middleboxes: after a HelloRetryRequest, or before its 0-RTT data.
		if h.answered && !h.reply.Version.IsTLS13() {
			h.endClient()
		}
	case evAlert:
		if ev.typ == alertFatal && !h.greeted {
			return ErrAlert
		}
	case evData: // 0-RTT data, which the server may refuse by a HelloRetryRequest
	}
	return nil
}

// greet remembers what a reply to this hello must be compared with.
func (h *Handshake) greet(hello *ClientHello) {
	h.greeted = true
	h.client.deaf = true
	h.hello = *hello
	h.hello.ServerName, h.hello.Ticket, h.hello.alpn, h.hello.psks = nil, nil, nil, nil
	h.noffers = 0
	h.ticket = len(hello.Ticket) > 0
	if h.ticket {
		h.offers[0] = MarkTicket(hello.Ticket)
		h.noffers = 1
	}
	for list := hello.psks; len(list) > 0 && h.noffers < maxOffers; h.noffers++ {
		var id []byte
		id, list = nextPSK(list)
		h.offers[h.noffers] = MarkTicket(id)
	}
}

// endClient drops the buffer, and does not give it back: a hello may still lie in it.
func (h *Handshake) endClient() {
	h.cdone = true
	h.client.buf = nil
}

func (h *Handshake) endServer() {
	h.sdone = true
	if pool := h.server.pool; pool != nil && h.server.buf != nil {
		pool.put(h.server.buf) // what was read of it is a copy
	}
	h.server.buf = nil
}

// Server takes the next bytes the server sent. It returns ErrShort until the first hello
// is complete. Another error says that there is none, as [ParseServerHello] does: nothing
// will be learned, and every later call returns it too. Otherwise it returns the latest
// hello.
func (h *Handshake) Server(chunk []byte) (ServerHello, error) {
	if h.serr != nil {
		return h.reply, h.serr
	}
	h.server.server = true
	for len(chunk) > 0 && !h.sdone {
		ev, err := h.server.next(chunk)
		if err == nil {
			chunk = chunk[ev.count:]
			err = h.serverEvent(ev)
		}
		if err != nil {
			h.endServer()
			h.endClient()
			if !h.answered && !h.retried {
				h.serr = err
				return h.reply, err
			}
		}
	}
	if !h.answered && !h.retried {
		return h.reply, ErrShort
	}
	return h.reply, nil
}

func (h *Handshake) serverEvent(ev event) error {
	switch ev.kind {
	case evMessage, evV2:
		if ev.kind == evMessage && ev.typ == msgNewSessionTicket {
			h.newTicket(ev.body)
			return nil
		}
		var reply ServerHello
		if err := parseServerEvent(&reply, ev); err != nil {
			return err
		}
		h.answer(reply)
	case evCipher:
		if h.answered {
			h.learn(Lesson{Kind: Finished})
			h.endServer()
			h.endClient()
		} else if !h.retried {
			return errNoServerHello
		}
	case evData:
		if !h.answered && !h.retried {
			return errNoServerHello
		}
		h.endServer()
		h.endClient()
	case evAlert:
		if ev.typ == alertFatal {
			return ErrAlert
		}
	}
	return nil
}

// answer draws the lessons from a ServerHello.
func (h *Handshake) answer(reply ServerHello) {
	h.reply = reply
	h.client.deaf = false
	if reply.HelloRetryRequest {
		h.retried = true
		return
	}
	h.answered = true
	switch id, own := reply.SessionID, h.hello.SessionID; {
	case reply.Version.IsTLS13():
		h.resumed = reply.HasPSK
		if i := h.offer(reply.PSK); reply.HasPSK && i < int(h.noffers) {
			h.learn(Lesson{Kind: LearnKey, Ticket: h.offers[i]})
		}
		h.endServer()
		h.endClient()
	case reply.SSLv2:
		if h.resumed = reply.Hit && !own.IsZero(); h.resumed {
			h.learn(Lesson{Kind: LearnID, ID: own})
		}
		h.endServer()
		h.endClient()
	case id.IsZero():
		h.resumed = false
	case !h.greeted:
		// Nothing to compare with: an echo looks like an ID that was issued.
	case id != own:
		h.resumed = false
		h.learn(Lesson{Kind: LearnID, ID: id})
	case h.ticket:
		h.resumed = true
		h.learn(Lesson{Kind: RefreshID, ID: id})
	default:
		h.resumed = true
		h.learn(Lesson{Kind: LearnID, ID: id})
	}
}

// offer returns where the mark of pre-shared key i lies.
func (h *Handshake) offer(i uint16) int {
	if h.ticket {
		return int(i) + 1 // the ticket of TLS 1.2 comes first
	}
	return int(i)
}

// newTicket reads a NewSessionTicket of TLS 1.2 (RFC 5077, section 3.3):
//
//	lifetime hint 4 | ticket 2+n
func (h *Handshake) newTicket(b []byte) {
	if !h.answered || len(b) < 6 || len(b)-6 != int(b[4])<<8|int(b[5]) || len(b) == 6 {
		return
	}
	h.learn(Lesson{Kind: LearnKey, Ticket: MarkTicket(b[6:])})
}

// learn keeps a lesson for Next. A server has no reason to teach more than a few things
// at a time; of one that does the oldest are lost.
func (h *Handshake) learn(l Lesson) {
	if h.nlessons == maxLessons {
		copy(h.lessons[:], h.lessons[1:])
		h.nlessons--
	}
	h.lessons[h.nlessons] = l
	h.nlessons++
}

// Next returns the next lesson and forgets it, or false if there is none now.
func (h *Handshake) Next() (l Lesson, ok bool) {
	if h.nlessons == 0 {
		return Lesson{}, false
	}
	l = h.lessons[0]
	copy(h.lessons[:], h.lessons[1:h.nlessons])
	h.nlessons--
	return l, true
}

// Resumed reports whether the server resumed a session, as far as its hello shows: an ID
// echoed before TLS 1.3, or a pre-shared key accepted.
func (h *Handshake) Resumed() bool { return h.resumed }

// Done reports whether the rest of the connection need not be fed.
func (h *Handshake) Done() bool {
	return h.cdone && h.sdone || h.cerr != nil || h.serr != nil
}

// Offers returns the marks of the tickets the latest hello of the client offers, at most
// four: those of TLS 1.2 and TLS 1.3 alike.
func (h *Handshake) Offers() []TicketMark { return h.offers[:h.noffers] }
