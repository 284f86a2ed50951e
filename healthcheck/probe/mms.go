package probe

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"unicode/utf16"

	"github.com/lbprim/lbprim/healthcheck"
)

// MMS asks a Microsoft Media Server for a connection (LinkViewerToMacConnect, MS-MMSP
// section 2.2.4.17) and wants it reported with success
// (LinkMacToViewerReportConnectedEX, section 2.2.4.2). The zero MMS works. It is a
// plain value, safe for concurrent use.
type MMS struct {
	Dialer Dialer // nil: the system's choices
}

// Probe implements [healthcheck.Prober].
func (p MMS) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	return askOverTCP(ctx, "mms", p.Dialer, target, maxReply, func(s *stream) error {
		s.step = "connect request"
		if err := s.send(mmsConnect(s.target)); err != nil {
			return err
		}
		s.step = "reply"
		return readMMS(s.reader)
	})
}

// The TcpMessageHeader (MS-MMSP section 2.2.3), little endian:
//
//	 0  rep 1 | version 0 | versionMinor 0 | padding
//	 4  sessionId 0xB00BFACE
//	 8  messageLength: of all messages, plus 16
//	12  seal "MMS "
//	16  chunkCount: of the packet, in units of 8 bytes
//	20  seq | MBZ
//	24  timeSent (8)
//	32  messages: chunkLen in units of 8 bytes | MID | fields
const (
	mmsHeader    = 32
	mmsSessionID = 0xb00bface
	mmsSeal      = 0x20534d4d

	mmsConnectMID   = 0x00030001
	mmsConnectedMID = 0x00040001
	mmsPingMID      = 0x0004001b
)

func mmsConnect(target netip.AddrPort) []byte {
	m := make([]byte, 0, 160)
	m = binary.LittleEndian.AppendUint32(m, 0) // chunkLen
	m = binary.LittleEndian.AppendUint32(m, mmsConnectMID)
	m = binary.LittleEndian.AppendUint32(m, 0xf0f0f0ef) // playIncarnation: no packet pair
	m = binary.LittleEndian.AppendUint32(m, 0x0004000b) // MacToViewerProtocolRevision
	m = binary.LittleEndian.AppendUint32(m, 0x0003001c) // ViewerToMacProtocolRevision
	name := "NSPlayer/7.0.0.1956; {00000000-0000-0000-0000-000000000000}; Host: " + string(appendHost(nil, target)) + "\x00"
	for _, u := range utf16.Encode([]rune(name)) {
		m = binary.LittleEndian.AppendUint16(m, u)
	}
	for len(m)%8 != 0 {
		m = append(m, 0)
	}
	binary.LittleEndian.PutUint32(m, uint32(len(m)/8))

	b := make([]byte, 0, mmsHeader+len(m))
	b = append(b, 1, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, mmsSessionID)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(m)+16))
	b = binary.LittleEndian.AppendUint32(b, mmsSeal)
	b = binary.LittleEndian.AppendUint32(b, uint32(mmsHeader+len(m))/8)
	b = append(b, make([]byte, 12)...)
	return append(b, m...)
}

// maxMMSPings bounds how many pings are passed over.
const maxMMSPings = 8

// readMMS reads packets until one carries the report of the connection.
func readMMS(r *reader) error {
	for range maxMMSPings {
		h, err := r.readFull(mmsHeader)
		if err != nil {
			return err
		}
		if id, seal := binary.LittleEndian.Uint32(h[4:]), binary.LittleEndian.Uint32(h[12:]); id != mmsSessionID || seal != mmsSeal {
			return healthcheck.Mismatch(h[:16], `a packet with session id 0xb00bface and seal "MMS "`)
		}
		n := binary.LittleEndian.Uint32(h[8:])
		if n < 16+8 || n > maxReply/2 {
			return healthcheck.Mismatch(fmt.Sprintf("message length %d", n), fmt.Sprintf("24 to %d", maxReply/2))
		}
		m, err := r.readFull(int(n) - 16)
		if err != nil {
			return err
		}
		if ping, err := parseMMS(m); !ping {
			return err
		}
	}
	return healthcheck.Mismatch("pings only", "the report of the connection")
}

// parseMMS looks for the report among the messages of a packet. ping: there were
// only pings.
func parseMMS(m []byte) (ping bool, err error) {
	for len(m) >= 8 {
		n, mid := uint64(binary.LittleEndian.Uint32(m))*8, binary.LittleEndian.Uint32(m[4:])
		if n < 8 || n > uint64(len(m)) {
			return false, healthcheck.Mismatch(fmt.Sprintf("a message of %d bytes", n), fmt.Sprintf("8 to %d bytes", len(m)))
		}
		switch {
		case mid == mmsPingMID:
		case mid == mmsConnectedMID && n >= 12:
			if hr := binary.LittleEndian.Uint32(m[8:]); hr != 0 {
				return false, healthcheck.Mismatch(fmt.Sprintf("connected with hr %#08x", hr), "hr 0")
			}
			return false, nil
		default:
			return false, healthcheck.Mismatch(fmt.Sprintf("message %#08x of %d bytes", mid, n), "LinkMacToViewerReportConnectedEX (0x00040001)")
		}
		m = m[n:]
	}
	return true, nil
}
