package pcapdev

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// mostPacket is the longest packet believed in; a longer one is a damaged length (as Wireshark and tcpdump judge).
	mostPacket = 1 << 18
	mostBlock  = 1 << 22
)

const (
	sectionBlock  = 0x0a0d0d0a
	simpleBlock   = 3
	obsoleteBlock = 2
	enhancedBlock = 6
)

// blocks passes the blocks of a pcapng file on whose lengths are sound (draft-ietf-opsawg-pcapng, 3.1): a damaged length
// would have its reader allocate gigabytes, or lose its place.
//
//	type(4) length(4) body length(4)
type blocks struct {
	r     io.Reader
	order binary.ByteOrder
	n     int // blocks read
	block bytes.Buffer
	err   error
}

func (b *blocks) Read(p []byte) (int, error) {
	if b.block.Len() == 0 && b.err == nil {
		b.err = b.next()
	}
	if b.block.Len() == 0 {
		return 0, b.err
	}
	return b.block.Read(p)
}

// next reads one block. The error is io.EOF only between blocks.
func (b *blocks) next() error {
	b.block.Reset()
	fault := func(format string, args ...any) error {
		b.block.Reset()
		return fmt.Errorf("block %d: "+format, append([]any{b.n}, args...)...)
	}
	var head [12]byte
	switch _, err := io.ReadFull(b.r, head[:]); {
	case err == io.EOF:
		return err
	case err != nil:
		return fault("%w", err)
	}
	b.n++
	if binary.LittleEndian.Uint32(head[:]) == sectionBlock {
		switch {
		case binary.LittleEndian.Uint32(head[8:]) == 0x1a2b3c4d:
			b.order = binary.LittleEndian
		case binary.BigEndian.Uint32(head[8:]) == 0x1a2b3c4d:
			b.order = binary.BigEndian
		default:
			return fault("no byte-order magic")
		}
	}
	if b.order == nil {
		return fault("no section header before it")
	}
	typ, length := b.order.Uint32(head[:]), b.order.Uint32(head[4:])
	if length < 12 || length > mostBlock || length%4 != 0 {
		return fault("length %d: want a multiple of 4 up to %d", length, mostBlock)
	}
	b.block.Write(head[:])
	if _, err := io.CopyN(&b.block, b.r, int64(length)-12); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fault("%w", err)
	}
	whole := b.block.Bytes()
	if again := b.order.Uint32(whole[length-4:]); again != length {
		return fault("length %d at its beginning, %d at its end", length, again)
	}
	switch typ {
	case enhancedBlock, obsoleteBlock: // interface(4) time(8) captured length(4) original length(4) packet
		if length < 32 || b.order.Uint32(whole[20:]) > length-32 {
			return fault("a packet longer than its block")
		}
	case simpleBlock: // original length(4) packet
		if length < 16 {
			return fault("a packet longer than its block")
		}
		if room := length - 16; b.order.Uint32(whole[8:]) > room {
			b.order.PutUint32(whole[8:], room) // cut at a snap length
		}
	}
	return nil
}
