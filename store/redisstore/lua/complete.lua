-- Makes claimed keys done. A request is: token, kind of the result, window in
-- milliseconds, whether the compact form would do, and the result.

return each(function(first, req, member)
  local token, kind, window, compact, from = unpack('<c8BI8B', req)
  local rec, state = load(KEYS[first])
  if not rec then
    return stale(marked(first, member) and string.char(DONE) or nil)
  elseif state == ONE_STEP or token == NONE or token_of(rec) ~= token then
    return stale(rec)
  elseif state == DONE then
    return 'K' -- it is repeated
  end
  local ids = sub(rec, 50 + unpack('<I4', rec, 46))
  local done = string.char(DONE) .. sub(rec, 2, 29) .. string.char(kind) .. ids .. sub(req, from)
  local err
  if compact == 1 and print_of(rec) == NONE then
    err = mark(first, member, done)
  else
    err = store(KEYS[first], done, window)
  end
  return err and refused(err) or 'K'
end)
