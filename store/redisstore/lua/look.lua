-- Looks keys up: the milliseconds that the key is known, or less than 0, this
-- moment, and the record. S is a key in the compact form, whose record may still
-- stand beside it.

return each(function(first, rec, state, _, member)
  local none = 'A'
  if not held(state) then
    for i = first + 1, first + stride - 1 do
      local found = own('SISMEMBER', KEYS[i], member)
      if found == 1 then
        return 'S' .. pack('<i8I8', redis.call('PTTL', KEYS[i]), now) .. (rec or string.char(DONE))
      elseif found == nil then
        none = 'C'
      end
    end
  end
  if rec then
    return 'R' .. pack('<i8I8', redis.call('PTTL', KEYS[first]), now) .. rec
  end
  return none
end)
