package probe

import (
	"encoding/binary"
	"fmt"

	"github.com/lbprim/lbprim/healthcheck"
)

// The few parts of ASN.1 BER (ITU-T X.690) that LDAP needs: one-byte tags, definite
// lengths in short or long form, not necessarily in the fewest bytes.
//
//	tag | length < 0x80          | value
//	tag | 0x80+n | n bytes length | value

// maxBER bounds one element.
const maxBER = 64 << 10

// appendTLV appends an element.
func appendTLV(b []byte, tag byte, v []byte) []byte {
	b = append(b, tag)
	if len(v) < 0x80 {
		b = append(b, byte(len(v)))
	} else {
		b = append(b, 0x84)
		b = binary.BigEndian.AppendUint32(b, uint32(len(v)))
	}
	return append(b, v...)
}

// readTLV reads the value of an element with tag want, of at most maxBER bytes.
func readTLV(r *reader, want byte) ([]byte, error) {
	tag, err := r.readByte()
	if err != nil {
		return nil, err
	}
	if tag != want {
		return nil, healthcheck.Mismatch([]byte{tag}, fmt.Sprintf("a message that begins with %#x", want))
	}
	c, err := r.readByte()
	if err != nil {
		return nil, tooShort(err)
	}
	n := uint64(c)
	if c >= 0x80 {
		k := int(c & 0x7f)
		if k == 0 || k > 4 {
			return nil, healthcheck.Mismatch([]byte{tag, c}, "a length of at most four bytes")
		}
		b, err := r.readFull(k)
		if err != nil {
			return nil, tooShort(err)
		}
		n = berLength(b)
	}
	if n > maxBER {
		return nil, healthcheck.Mismatch(fmt.Sprintf("length %d", n), fmt.Sprintf("at most %d", maxBER))
	}
	v, err := r.readFull(int(n))
	return v, tooShort(err)
}

func tooShort(err error) error {
	if err != nil {
		err = fmt.Errorf("message too short: %w", err)
	}
	return err
}

// cutTLV splits the first element off b.
func cutTLV(b []byte) (tag byte, v, rest []byte, ok bool) {
	if len(b) < 2 {
		return 0, nil, nil, false
	}
	tag, n, off := b[0], uint64(b[1]), 2
	if b[1] >= 0x80 {
		k := int(b[1] & 0x7f)
		if k == 0 || k > 4 || len(b) < 2+k {
			return 0, nil, nil, false
		}
		n, off = berLength(b[2:2+k]), 2+k
	}
	if n > uint64(len(b)-off) {
		return 0, nil, nil, false
	}
	end := off + int(n)
	return tag, b[off:end], b[end:], true
}

func berLength(b []byte) (n uint64) {
	for _, c := range b {
		n = n<<8 | uint64(c)
	}
	return n
}

// berUint is the value of an INTEGER or ENUMERATED that is not negative and fits.
func berUint(v []byte) (uint32, bool) {
	if len(v) == 0 || len(v) > 4 || v[0] >= 0x80 {
		return 0, false
	}
	return uint32(berLength(v)), true
}
